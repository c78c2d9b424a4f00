"""Active forgetting of a belief (Eq. 1, Supplementary 1.1) and the target distribution that learns on from it.

How probable the new task is after forgetting (Eq. 5), and how that changes with the rate.

More than two tasks (Eq. 7, 8, 10): forgetting before each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kenyon.errors import ConfigError
from kenyon.paper.theory.beliefs import Array, Evidence, Gaussian, Numbers, count, not_negative, rate


@dataclass(frozen=True)
class Forgotten:
    """p_hat(theta | D_A, beta) = p(theta | D_A)^(1-beta) p(theta)^beta / Z = N(m, v^2), with the paper's names.

    Rates (...) make a batch: m, v2 and k have the shape (..., n), log_z has (...).
    """

    belief: Gaussian  # N(m, v^2), S7
    k: Array  # S6, the mean of the two squared means; k - m^2 is how far they lie apart
    log_z: Array  # S8, of all parameters together

    @property
    def m(self) -> Array:
        """S5."""
        return self.belief.mean

    @property
    def v2(self) -> Array:
        """S4."""
        return self.belief.variance

    @property
    def z(self) -> Array:
        """S8. At most 1, and 1 at beta = 0 and beta = 1; for many parameters it underflows: use log_z."""
        return np.exp(self.log_z)


def forget(old: Gaussian, prior: Gaussian, beta: Numbers) -> Forgotten:
    """S3 to S8 with p_1 = old = N(mu_1, sigma_1^2) and p_2 = prior = N(mu_2, sigma_2^2).

    Precisions mix linearly, 1/v^2 = (1-beta)/sigma_1^2 + beta/sigma_2^2, which is S4 without its products of
    variances, so that v and m are sums of positive terms. log Z = -1/2 sum of
    ln(tau / tau_1^(1-beta) tau_2^beta) + beta (1-beta) (mu_1 - mu_2)^2 / (beta sigma_1^2 + (1-beta) sigma_2^2)
    with tau = 1/v^2; the second term is (k - m^2) / v^2 without the difference.
    """
    beta = rate("beta", beta)[..., None]
    if old.mean.shape[-1] != prior.mean.shape[-1]:
        raise ConfigError(
            f"old has {old.mean.shape[-1]} parameters and prior {prior.mean.shape[-1]}: both must have the same."
        )
    kept, given = (1 - beta) * old.precision, beta * prior.precision
    precision = kept + given
    share = kept / precision  # of the old mean in m
    other = given / precision
    log = np.log(precision)
    widths = (1 - beta) * (np.log(old.precision) - log) + beta * (np.log(prior.precision) - log)
    apart = share * beta * prior.precision * np.square(old.mean - prior.mean)
    return Forgotten(
        Gaussian(share * old.mean + other * prior.mean, 1 / precision),
        k=share * np.square(old.mean) + other * np.square(prior.mean),
        log_z=0.5 * (np.minimum(widths, 0) - apart).sum(-1),
    )


def target(old: Gaussian, prior: Gaussian, task: Evidence, beta: Numbers) -> Gaussian:
    """p(theta | D_A, D_B, beta), proportional to p(D_B | theta) p_hat(theta | D_A, beta): what Fig. 3b draws.

    beta = 0 is Bayes' rule, and its mode what EWC looks for; beta = 1 starts from the prior, as if there had been no
    task A. The text normalises it by p(D_B) (Eq. 6); it is p(D_B | D_A, beta), see `log_predictive`. Both are
    constant in theta.
    """
    return forget(old, prior, beta).belief.given(task)


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


def learn_in_turn(prior: Gaussian, tasks: Sequence[Evidence], beta: Numbers) -> list[Gaussian]:
    """p(theta | D_1:t, beta_1:t) after each task; one rate for all tasks, or one a task.

    Before the first task there is nothing but the prior, so its rate changes nothing.
    """
    rates = rate("beta", beta)
    if rates.ndim and rates.shape != (len(tasks),):
        raise ConfigError(f"beta must be one number or one a task ({len(tasks)}), not an array {rates.shape}.")
    beliefs: list[Gaussian] = []
    for task, b in zip(tasks, np.broadcast_to(rates, len(tasks)), strict=True):
        beliefs.append(target(beliefs[-1] if beliefs else prior, prior, task, b))
    return beliefs


def memory_weights(tasks: int, beta: float) -> Array:
    """How much of the Fisher information of each task, oldest first, is in the belief after the last one.

    (1-beta)^(t-k) for task k of t: with one rate the precision of `learn_in_turn` is that of the prior plus
    sum_k (1-beta)^(t-k) F_k. Forgetting the same share before every task forgets old tasks exponentially.
    """
    kept = 1 - float(rate("beta", beta))
    return kept ** np.arange(count("tasks", tasks) - 1, -1, -1, dtype=np.float64)


def fisher_remembered(fishers: Numbers, beta: float) -> Array:
    """F_1:t = F_t + (1-beta) F_1:t-1 of fishers (t, n), as Eq. 8 implies."""
    f = np.atleast_1d(not_negative("fishers", fishers))
    return np.tensordot(memory_weights(len(f), beta), f, axes=1)


def fisher_sum(fishers: Numbers) -> Array:
    """F_1:t = F_t + F_1:t-1, as Eq. 10 has it. Equal to `fisher_remembered` only at beta = 0."""
    return fisher_remembered(fishers, 0.0)
