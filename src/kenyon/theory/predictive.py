"""How probable the new task is after forgetting (Eq. 5), and how that changes with the rate."""

from __future__ import annotations

import numpy as np

from kenyon.theory.checks import Array, Numbers
from kenyon.theory.forgetting import forget
from kenyon.theory.gaussian import Evidence, Gaussian


def log_predictive(old: Gaussian, prior: Gaussian, task: Evidence, beta: Numbers) -> Array:
    """log p(D_B | D_A, beta) = log of the integral of p(D_B | theta) p_hat(theta | D_A, beta)."""
    return forget(old, prior, beta).belief.log_evidence(task)


def log_predictive_slope(old: Gaussian, prior: Gaussian, task: Evidence, beta: Numbers) -> Array:
    """Its derivative by beta. Positive at beta = 0: a little forgetting helps the new task."""
    belief = forget(old, prior, beta).belief
    m, v2 = belief.mean, belief.variance
    # 1/v^2 and m/v^2 are linear in beta.
    v2_slope = -np.square(v2) * (prior.precision - old.precision)
    m_slope = v2 * (prior.precision * (prior.mean - m) - old.precision * (old.mean - m))
    seen = task.fisher / (1 + v2 * task.fisher)  # 1 / (v^2 + 1/F)
    far = task.optimum - m
    return (seen * far * m_slope + 0.5 * seen * v2_slope * (seen * np.square(far) - 1)).sum(-1)
