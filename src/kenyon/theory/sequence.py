"""More than two tasks (Eq. 7, 8, 10): forgetting before each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kenyon.errors import ConfigError
from kenyon.theory.checks import Array, Numbers, count, not_negative, rate
from kenyon.theory.forgetting import target
from kenyon.theory.gaussian import Evidence, Gaussian


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
