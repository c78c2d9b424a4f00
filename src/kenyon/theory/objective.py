"""The loss with both penalties (Eq. 2) where all its terms are quadratic, and the weights that minimise it.

L_B + lambda_SP / 2 sum_m F_A,m (theta_m - theta_A,m)^2 + lambda_AF / 2 sum_m I_e,m (theta_m - theta_e,m)^2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kenyon.theory.checks import Array, Numbers, finite
from kenyon.theory.gaussian import Evidence, Gaussian
from kenyon.theory.lambdas import Lambdas


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
