"""The forgetting rate as the strengths of two penalties (Eq. 2, 6, S9), and back.

The text gives proportions only: AF-1 has lambda_SP ~ 1-beta and lambda_AF ~ beta, AF-2 has lambda_SP ~ 1 and
lambda_AF ~ beta / (1-beta). `Scales` are what they are multiplied by. Read from the derivation, both are 1 when the
task's loss is the sum of -log p over its N samples and I_e the precision of what is renormalised with. AF-1 as
written, with I_e = 1, then has af = 1 / sigma^2 of the prior; a loss that is a mean over samples divides both by N.

The loss with both penalties (Eq. 2) where all its terms are quadratic, and the weights that minimise it.

L_B + lambda_SP / 2 sum_m F_A,m (theta_m - theta_A,m)^2 + lambda_AF / 2 sum_m I_e,m (theta_m - theta_e,m)^2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kenyon.errors import ConfigError
from kenyon.paper.theory.beliefs import Array, Evidence, Gaussian, Numbers, finite, not_negative, positive, rate


class Lambdas(NamedTuple):
    """Strengths of stability protection and of active forgetting; numbers, or arrays of the rates' shape."""

    sp: Array
    af: Array


@dataclass(frozen=True)
class Scales:
    """lambda_SP of AF-1 at beta = 0 (and of AF-2 always); lambda_AF of AF-1 at beta = 1."""

    sp: float = 1.0
    af: float = 1.0

    def __post_init__(self) -> None:
        positive("the scale of lambda_SP", self.sp)
        positive("the scale of lambda_AF", self.af)


class Forgetting(NamedTuple):
    """Two strengths read as a rate, and a factor that both have in common beyond what the rate asks for."""

    beta: Array
    factor: Array


PLAIN = Scales()


def lambdas_af1(beta: Numbers, scales: Scales = PLAIN) -> Lambdas:
    """(1-beta) log p(theta | D_A) + beta log p(theta): old memories are weakened directly."""
    b = rate("beta", beta)
    return Lambdas(scales.sp * (1 - b), scales.af * b)


def lambdas_af2(beta: Numbers, scales: Scales = PLAIN) -> Lambdas:
    """log p(theta | D_A) + beta / (1-beta) log p(theta | D_B): the old term stays, the new one grows without end."""
    b = rate("beta", beta)
    if (b == 1).any():
        raise ConfigError("beta must be below 1 for AF-2: its lambda_AF is beta / (1 - beta).")
    return Lambdas(np.full_like(b, scales.sp), scales.af * b / (1 - b))


def forgetting_af1(lambda_sp: Numbers, lambda_af: Numbers, scales: Scales = PLAIN) -> Forgetting:
    """beta and factor with (lambda_SP, lambda_AF) = factor * lambdas_af1(beta).

    The factor is 1 for strengths that follow the derivation; tuned independently they rarely do.
    """
    sp, af = _strengths(lambda_sp, lambda_af, scales)
    factor = sp + af
    if (factor == 0).any():
        raise ConfigError("lambda_SP and lambda_AF are both 0: nothing is kept and nothing forgotten, at no rate.")
    return Forgetting(af / factor, factor)


def forgetting_af2(lambda_sp: Numbers, lambda_af: Numbers, scales: Scales = PLAIN) -> Forgetting:
    """beta and factor with (lambda_SP, lambda_AF) = factor * lambdas_af2(beta): the same beta as in AF-1.

    Both have lambda_AF / lambda_SP ~ beta / (1-beta).
    """
    sp, af = _strengths(lambda_sp, lambda_af, scales)
    if (sp == 0).any():
        raise ConfigError(
            "lambda_SP must be larger than 0 for AF-2, where it does not depend on the forgetting rate."
        )
    return Forgetting(af / (sp + af), sp)


def learner_lambdas(lambda_af: float, shares: Numbers) -> Array:
    """lambda_AF,i = alpha_i K lambda_AF of K learners with shares alpha_i that sum to 1; their mean is lambda_AF."""
    alpha = np.atleast_1d(not_negative("shares", shares))
    if not np.isclose(alpha.sum(), 1):
        raise ConfigError(f"shares must sum to 1, as a softmax does, not to {alpha.sum():g}.")
    return not_negative("lambda_af", lambda_af) * len(alpha) * alpha


def _strengths(lambda_sp: Numbers, lambda_af: Numbers, scales: Scales) -> tuple[Array, Array]:
    sp, af = not_negative("lambda_sp", lambda_sp) / scales.sp, not_negative("lambda_af", lambda_af) / scales.af
    try:
        a, b = np.broadcast_arrays(sp, af)
    except ValueError as error:
        raise ConfigError(f"lambda_sp {sp.shape} and lambda_af {af.shape} must have the same shape.") from error
    return a, b


class Expanded(NamedTuple):
    """The expanded parameters that the network is renormalised with, and how selectively."""

    theta: Array  # theta_e, (n,)
    importance: Array  # I_e, (n,)


def expanded_af1(prior: Gaussian) -> Expanded:
    """What S9 asks for: the prior's mean and precision."""
    return Expanded(prior.mean, prior.precision)


def expanded_af1_literal(parameters: int) -> Expanded:
    """theta_e = 0, I_e = 1: a prior around zero, whose precision is left to lambda_AF."""
    return Expanded(np.zeros(parameters), np.ones(parameters))


def expanded_af2(prior: Gaussian, task: Evidence) -> Expanded:
    """What S9 asks for: mode and precision of p(theta | D_B), prior included. AF-2 is then equivalent to AF-1."""
    alone = prior.given(task)
    return Expanded(alone.mode, alone.precision)


def expanded_af2_literal(task: Evidence) -> Expanded:
    """theta_e = theta_B*, the minimum of L_B, and I_e = F_B: p(theta | D_B) without its prior.

    The text calls it equivalent to AF-1. It is in the limit of a flat prior; otherwise the prior is not in this loss
    at all, and its minimum lies between the two tasks' own, wherever the prior is.
    """
    return Expanded(task.optimum, task.fisher)


def loss(theta: Numbers, old: Gaussian, task: Evidence, lambdas: Lambdas, expanded: Expanded) -> Array:
    """At weights (..., n), with one pair of lambdas. L_B is -log p(D_B | theta)."""
    w = finite("theta", theta)
    stability = (old.precision * np.square(w - old.mean)).sum(-1)
    forgetting = (expanded.importance * np.square(w - expanded.theta)).sum(-1)
    return -task.log_likelihood(w) + lambdas.sp / 2 * stability + lambdas.af / 2 * forgetting


def minimiser(old: Gaussian, task: Evidence, lambdas: Lambdas, expanded: Expanded) -> Array:
    """theta*_A,B: the mean of the three optima, weighted by their curvatures; lambdas (...) give (..., n).

    The curvature must not vanish: where the task's F is 0, one of the lambdas must be above 0.
    """
    keep = lambdas.sp[..., None] * old.precision
    renew = lambdas.af[..., None] * expanded.importance
    pulls = task.fisher * task.optimum + keep * old.mean + renew * expanded.theta
    return pulls / (task.fisher + keep + renew)
