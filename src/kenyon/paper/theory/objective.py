"""The loss with two quadratic penalties (Eq. 2, 6, S9), its minimiser, and its strengths by forgetting rate.

L_B + lambda_SP / 2 sum_m F_A,m (theta_m - theta_A,m)^2 + lambda_AF / 2 sum_m I_e,m (theta_m - theta_e,m)^2

The text gives proportions only: AF-1 has lambda_SP ~ 1-beta and lambda_AF ~ beta, AF-2 has lambda_SP ~ 1 and
lambda_AF ~ beta / (1-beta); `Scales` are their factors. By the derivation both factors are 1 when the task's loss is
the sum of -log p over its N samples and I_e is the precision of the expanded parameters. AF-1 as written, with
I_e = 1, then has af = 1 / sigma^2 of the prior; a loss that is a mean over samples divides both by N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kenyon.errors import ConfigError
from kenyon.paper.theory.beliefs import (
    Array,
    Evidence,
    Gaussian,
    Numbers,
    best_rate,
    count,
    finite,
    forget,
    log_predictive,
    not_negative,
    number,
    positive,
    rate,
)


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
    """Two strengths as a forgetting rate and a common factor."""

    beta: Array
    factor: Array


PLAIN = Scales()


def lambdas_af1(beta: Numbers, scales: Scales = PLAIN) -> Lambdas:
    """Strengths of AF-1, (1-beta) log p(theta | D_A) + beta log p(theta): the old term shrinks with the rate."""
    b = rate("beta", beta)
    return Lambdas(scales.sp * (1 - b), scales.af * b)


def lambdas_af2(beta: Numbers, scales: Scales = PLAIN) -> Lambdas:
    """Strengths of AF-2, log p(theta | D_A) + beta / (1-beta) log p(theta | D_B): only the new term changes."""
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
    """The expanded parameters theta_e that active forgetting pulls to, and their importances I_e."""

    theta: Array  # theta_e, (n,)
    importance: Array  # I_e, (n,)


def expanded_af1(prior: Gaussian) -> Expanded:
    """Mean and precision of the prior, as S9 requires."""
    return Expanded(prior.mean, prior.precision)


def expanded_af1_literal(parameters: int) -> Expanded:
    """theta_e = 0, I_e = 1: a prior around zero, whose precision is left to lambda_AF."""
    return Expanded(np.zeros(parameters), np.ones(parameters))


def expanded_af2(prior: Gaussian, task: Evidence) -> Expanded:
    """Mode and precision of p(theta | D_B), prior included, as S9 requires. AF-2 is then equivalent to AF-1."""
    alone = prior.given(task)
    return Expanded(alone.mode, alone.precision)


def expanded_af2_literal(task: Evidence) -> Expanded:
    """theta_e = theta_B*, the minimum of L_B, and I_e = F_B: p(theta | D_B) without its prior.

    The text calls it equivalent to AF-1. It is in the limit of a flat prior; otherwise the prior is not in this loss
    at all, and its minimum lies between the two tasks' own, wherever the prior is.
    """
    return Expanded(task.optimum, task.fisher)


def loss(theta: Numbers, old: Gaussian, task: Evidence, lambdas: Lambdas, expanded: Expanded) -> Array:
    """The loss at weights (..., n), with one pair of lambdas. L_B is -log p(D_B | theta)."""
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


BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def fig3b_data(
    mu: float = 0.0,
    sigma: float = 1.0,
    a: float = 4.0,
    task_optimum: float | None = None,
    task_fisher: float | None = None,
    betas: Sequence[float] = BETAS,
    points: int = 401,
) -> dict[str, Any]:
    """The numbers of Fig. 3b as plain numbers and lists, ready for JSON.

    The caption gives p(theta) = N(mu, sigma^2) and p(theta | D_A) = N(mu + a, sigma^2), so that
    p_hat = N(mu + (1-beta) a, sigma^2) and Z = exp(-beta (1-beta) a^2 / 2 sigma^2). It is silent on p(D_B | theta),
    which the target distribution needs: here its optimum is mu + a/4, and F = 1 / sigma^2 as precise as the others.
    With task_fisher = 0 the task carries no information, and the target is p_hat itself.
    """
    spread, n = number("sigma", sigma), count("points", points, least=2)
    middle, away = float(finite("mu", mu)), float(finite("a", a))
    rates = np.atleast_1d(rate("betas", betas))
    if rates.ndim != 1 or not rates.size:
        raise ConfigError("betas must be a list of one forgetting rate at least.")
    prior, old = Gaussian(middle, spread**2), Gaussian(middle + away, spread**2)
    task = Evidence(
        middle + away / 4 if task_optimum is None else task_optimum,
        1 / spread**2 if task_fisher is None else task_fisher,
    )
    forgotten = forget(old, prior, rates)
    targets = forgotten.belief.given(task)
    low, high = sorted((middle, middle + away))
    theta = np.linspace(low - 3.5 * spread, high + 3.5 * spread, n)
    best, curve, below_one = best_rate(old, prior, task), np.linspace(0, 1, n), np.linspace(0, 0.99, n)

    def densities(belief: Gaussian) -> list[Any]:
        """(B, n), or (n,) of one belief."""
        at = np.exp(belief.log_density(theta[(...,) + (None,) * belief.mean.ndim]))  # (n, B) or (n,)
        return _plain(at.T)

    return {
        "settings": {
            "mu": middle,
            "sigma": spread,
            "a": away,
            "task_optimum": float(task.optimum[0]),
            "task_fisher": float(task.fisher[0]),
        },
        "theta": _plain(theta),
        "prior": densities(prior),
        "old": densities(old),
        "likelihood": _plain(np.exp(task.log_likelihood(theta[:, None]))),
        "targets": [
            {
                "beta": b,
                "mean": m,
                "variance": v,
                "forgotten_mean": fm,
                "forgotten_variance": fv,
                "log_z": z,
                "density": d,
            }
            for b, m, v, fm, fv, z, d in zip(
                _plain(rates),
                _plain(targets.mean[:, 0]),
                _plain(targets.variance[:, 0]),
                _plain(forgotten.m[:, 0]),
                _plain(forgotten.v2[:, 0]),
                _plain(forgotten.log_z),
                densities(targets),
                strict=True,
            )
        ],
        "predictive": {
            "beta": _plain(curve),
            "log_probability": _plain(log_predictive(old, prior, task, curve)),
            "best": {
                "beta": best.beta,
                "log_probability": best.log_predictive,
                "gain": best.gain,
                "how": best.how,
                "excess": best.excess,
                "checked": best.checked,
            },
        },
        "lambdas": {
            "beta": _plain(below_one),
            "af1": {name: _plain(value) for name, value in lambdas_af1(below_one)._asdict().items()},
            "af2": {name: _plain(value) for name, value in lambdas_af2(below_one)._asdict().items()},
        },
    }


def _plain(values: Array) -> list[Any]:
    return values.tolist()
