"""Arguments of formulas: numbers within the range where the formula means something, or an error that names them.

What is believed of the parameters, and what a task says of them: both Gaussian in theta, with diagonal precision.

The last axis is the parameters, and a plain number is one parameter; axes before it hold several beliefs at once,
such as one for every forgetting rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, pi

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError

Array = npt.NDArray[np.float64]
Numbers = npt.ArrayLike


def finite(name: str, value: Numbers) -> Array:
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be a number or an array of numbers, not {value!r}.") from error
    if not np.isfinite(found).all():
        raise ConfigError(f"{name} must be finite, not {_first(found, ~np.isfinite(found))}.")
    return found


def positive(name: str, value: Numbers) -> Array:
    found = finite(name, value)
    if (found <= 0).any():
        raise ConfigError(f"{name} must be larger than 0, not {_first(found, found <= 0)}.")
    return found


def not_negative(name: str, value: Numbers) -> Array:
    found = finite(name, value)
    if (found < 0).any():
        raise ConfigError(f"{name} must be 0 or larger, not {_first(found, found < 0)}.")
    return found


def rate(name: str, value: Numbers) -> Array:
    """A forgetting rate, or an array of them."""
    found = finite(name, value)
    outside = (found < 0) | (found > 1)
    if outside.any():
        raise ConfigError(
            f"{name} must lie between 0 (nothing forgotten) and 1 (all forgotten), not {_first(found, outside)}."
        )
    return found


def confidence(name: str, value: float) -> float:
    """delta of a bound that holds with probability 1 - delta."""
    if not isfinite(value) or not 0 < value < 1:
        raise ConfigError(f"{name} must lie between 0 and 1, both left out, not {value}.")
    return float(value)


def count(name: str, value: float, least: int = 1) -> int:
    if not isfinite(value) or value != int(value) or value < least:
        raise ConfigError(f"{name} must be a whole number, {least} or larger, not {value}.")
    return int(value)


def number(name: str, value: float, *, above_zero: bool = True) -> float:
    found = (positive if above_zero else not_negative)(name, value)
    if found.ndim:
        raise ConfigError(f"{name} must be one number, not an array of shape {found.shape}.")
    return float(found)


def _first(found: Array, bad: npt.NDArray[np.bool_]) -> float:
    return float(found[bad].flat[0])


LOG_2PI = log(2 * pi)


@dataclass(frozen=True, init=False, eq=False)
class Gaussian:
    """N(mean, diag(variance))."""

    mean: Array  # (..., n)
    variance: Array  # (..., n)

    def __init__(self, mean: Numbers, variance: Numbers) -> None:
        _set_pair(self, "mean", finite("mean", mean), "variance", positive("variance", variance))

    @property
    def precision(self) -> Array:
        return 1 / self.variance

    @property
    def mode(self) -> Array:
        return self.mean

    def log_density(self, theta: Numbers) -> Array:
        """At points (..., n)."""
        far = np.square(finite("theta", theta) - self.mean) / self.variance
        return -0.5 * (LOG_2PI + np.log(self.variance) + far).sum(-1)

    def given(self, task: Evidence) -> Gaussian:
        """Bayes' rule: p(theta | D) = p(D | theta) p(theta) / p(D), a Gaussian again."""
        _same_parameters(self, task)
        gain = 1 / (1 + self.variance * task.fisher)
        pull = (1 - gain) * (task.optimum - self.mean)
        return Gaussian(self.mean + pull, self.variance * gain)

    def log_evidence(self, task: Evidence) -> Array:
        """log p(D) = log of the integral of p(D | theta) p(theta): what Bayes' rule divides by."""
        _same_parameters(self, task)
        spread = self.variance * task.fisher
        far = task.fisher / (1 + spread) * np.square(task.optimum - self.mean)
        return task.log_peak - 0.5 * (np.log1p(spread) + far).sum(-1)


@dataclass(frozen=True, init=False, eq=False)
class Evidence:
    """log p(D | theta) = log_peak - 1/2 sum_m F_m (theta_m - optimum_m)^2: a task's data, as seen from theta.

    The second-order expansion around the task's own optimum with the diagonal Fisher information F (Eq. 4); F = 0 is
    a parameter that the task says nothing of.
    """

    optimum: Array  # (n,)
    fisher: Array  # (n,)
    log_peak: float

    def __init__(self, optimum: Numbers, fisher: Numbers, log_peak: float = 0.0) -> None:
        _set_pair(self, "optimum", finite("optimum", optimum), "fisher", not_negative("fisher", fisher))
        object.__setattr__(self, "log_peak", float(finite("log_peak", log_peak)))

    @classmethod
    def of_samples(cls, samples: Numbers, noise: float) -> Evidence:
        """Samples (N, n) or (N,) of N(theta, noise): the model for which the expansion is exact."""
        x, noise = finite("samples", samples), number("noise", noise)
        if x.ndim not in (1, 2) or not len(x):
            raise ConfigError(f"samples must be an array (N, n) or (N,) with N of 1 or more, not {x.shape}.")
        x = x.reshape(len(x), -1)
        middle = x.mean(0)
        peak = -0.5 * (x.size * (LOG_2PI + log(noise)) + np.square(x - middle).sum() / noise)
        return cls(middle, np.full(x.shape[1], len(x) / noise), float(peak))

    def log_likelihood(self, theta: Numbers) -> Array:
        """At points (..., n)."""
        return self.log_peak - 0.5 * (self.fisher * np.square(finite("theta", theta) - self.optimum)).sum(-1)


def _set_pair(made: object, first: str, a: Array, second: str, b: Array) -> None:
    """The two arrays as fields of a frozen object, in a common shape with an axis of parameters."""
    try:
        a, b = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    except ValueError as error:
        raise ConfigError(f"{first} {a.shape} and {second} {b.shape} must have the same shape.") from error
    object.__setattr__(made, first, a)
    object.__setattr__(made, second, b)


def _same_parameters(belief: Gaussian, task: Evidence) -> None:
    ours, theirs = belief.mean.shape[-1], task.optimum.shape[-1]
    if ours != theirs:
        raise ConfigError(f"The task has {theirs} parameters and the belief {ours}: both must have the same.")
