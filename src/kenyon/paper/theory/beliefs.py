"""Gaussian beliefs about parameters: Bayes' rule, active forgetting, and the best forgetting rate for a new task.

A belief N(mean, diag(variance)) is what is known of theta; `Evidence` is the quadratic log likelihood of a task. The
last axis is the parameters, and a plain number is one parameter; axes before it hold several beliefs at once, such as
one per forgetting rate.

- `forget`, `target`: Eq. 1, Supplementary 1.1; the target distribution that Fig. 3b draws.
- `log_predictive`, `best_rate`: the probability of the new task after forgetting, and its maximiser (Eq. 5).
- `learn_in_turn`, `memory_weights`, `fisher_remembered`: more than two tasks (Eq. 7, 8, 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log, pi, sqrt
from typing import Literal

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
    """A forgetting rate, or an array of forgetting rates."""
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
        """Log density at points (..., n)."""
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

    The second-order expansion around the task's own optimum with the diagonal Fisher information F (Eq. 4); F = 0
    marks a parameter that the task does not depend on.
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
        """log p(D | theta) at points (..., n)."""
        return self.log_peak - 0.5 * (self.fisher * np.square(finite("theta", theta) - self.optimum)).sum(-1)


def _set_pair(made: object, first: str, a: Array, second: str, b: Array) -> None:
    """Set two arrays as fields of a frozen object, in a common shape with an axis of parameters."""
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
    task A. The text normalizes by p(D_B) (Eq. 6); the normalizer is p(D_B | D_A, beta), see `log_predictive`. Both
    are constant in theta.
    """
    return forget(old, prior, beta).belief.given(task)


def log_predictive(old: Gaussian, prior: Gaussian, task: Evidence, beta: Numbers) -> Array:
    """log p(D_B | D_A, beta) = log of the integral of p(D_B | theta) p_hat(theta | D_A, beta)."""
    return forget(old, prior, beta).belief.log_evidence(task)


def log_predictive_slope(old: Gaussian, prior: Gaussian, task: Evidence, beta: Numbers) -> Array:
    """Derivative of `log_predictive` by beta. Positive at beta = 0: a little forgetting helps the new task."""
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
    """Share of the Fisher information of each task, oldest first, in the belief after the last task.

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
    """F_1:t = F_t + F_1:t-1, as in Eq. 10. Equal to `fisher_remembered` only at beta = 0."""
    return fisher_remembered(fishers, 0.0)


How = Literal["one parameter", "equal variances", "search"]
SAME = 1e-14  # relative: a smaller gain is none
MISSED = 1e-12  # relative: more than the rounding of a long sum
AT_ONCE = 2**20  # numbers of a batch of rates


@dataclass(frozen=True)
class BestRate:
    """The maximum of `log_predictive` on [0, 1]. The first two values of `how` are closed forms."""

    beta: float
    log_predictive: float
    gain: float  # over beta = 0, where nothing is forgotten
    how: How
    excess: float  # certificate: the largest value of the `checked` rates minus the maximum; 0 or rounding
    checked: int


def best_rate(old: Gaussian, prior: Gaussian, task: Evidence) -> BestRate:
    """Return the forgetting rate that maximizes `log_predictive`; 0 if forgetting does not help.

    With one parameter there is a single maximum (see `_one_parameter`), and likewise with equal variances. Otherwise
    there may be several: every local maximum of a grid is refined by bisection of the slope.
    """
    _check(old, prior, task)
    problem = _Problem(old, prior, task)
    if len(task.optimum) == 1:
        return problem.best("one parameter", _one_parameter(old, prior, task), _grid(1499))
    if np.array_equal(old.variance, prior.variance):
        return problem.best("equal variances", _equal_variances(old, prior, task), _grid(1499))
    for points in (1000, 4000, 16000):  # finer where the check, on other rates, finds a larger value
        found = problem.best("search", problem.maxima(_grid(points)), _grid(points + points // 2 - 1))
        if found.excess <= MISSED * (1 + abs(found.log_predictive)):
            break
    return found


def _one_parameter(old: Gaussian, prior: Gaussian, task: Evidence) -> list[float]:
    """The rate within (0, 1) where the slope is zero and falling, from a quadratic equation; empty if there is none.

    In units of sigma_1: let a = 1/v^2 = 1 + a1 beta and c = a (theta_B - m) = c0 + c1 beta, both linear. Then
    -2 log p = ln(1 + F/a) + F c^2 / (a (a+F)), and the sign of its slope is that of n0 + n1 beta + n2 beta^2: the
    cubic terms cancel. As a function of a it is (A a^2 - B a - C) / a1 with B, C >= 0, which changes sign once on
    a > 0 if A > 0 and never otherwise: the predictive probability has one maximum on [0, 1].
    """
    unit = float(old.variance[0])
    F, ratio = float(task.fisher[0]) * unit, unit / float(prior.variance[0])
    c0 = float(task.optimum[0] - old.mean[0]) / sqrt(unit)
    shift = ratio * float(prior.mean[0] - old.mean[0]) / sqrt(unit)
    a1 = ratio - 1
    c1 = c0 * a1 - shift
    A, B, C = c1 * c1 * F - 2 * shift * c1 - a1 * a1, 2 * shift * shift + F * a1 * a1, shift * shift * F
    if A <= 0:
        return []
    n0 = a1 * (c0 * c0 * F - 1 - F) - 2 * c0 * shift * (1 + F)
    n1, n2 = 2 * A - B, A * a1
    root = sqrt(B * B + 4 * A * C)  # equals sqrt(n1^2 - 4 n0 n2), without a difference
    if n1 > 0:
        beta = -2 * n0 / (n1 + root)
    elif n2:
        beta = (root - n1) / (2 * n2)
    else:
        return []
    return [beta] if 0 < beta < 1 else []


def _equal_variances(old: Gaussian, prior: Gaussian, task: Evidence) -> list[float]:
    """The maximum of a parabola: v is constant in beta and m linear, so the log probability is quadratic."""
    way = prior.mean - old.mean
    weight = task.fisher / (1 + old.variance * task.fisher)
    width = float((weight * way * way).sum())
    if not width:
        return []
    beta = float((weight * way * (task.optimum - old.mean)).sum()) / width
    return [beta] if 0 < beta < 1 else []


@dataclass(frozen=True)
class _Problem:
    old: Gaussian
    prior: Gaussian
    task: Evidence

    def best(self, how: How, inside: list[float], check: Array) -> BestRate:
        """Return the best of the candidates inside [0, 1] and its two ends, checked against the rates of a grid."""
        betas = np.array([0.0, *inside, 1.0])
        values = self.values(betas)
        top = int(values.argmax())
        if values[0] >= values[top] - SAME * (1 + abs(values[top])):
            top = 0
        beta, most, none = float(betas[top]), float(values[top]), float(values[0])
        excess = max(0.0, float(self.values(check).max()) - most)
        return BestRate(beta, most, max(0.0, most - none), how, excess, len(check))

    def values(self, betas: Array) -> Array:
        step = max(1, AT_ONCE // len(self.task.optimum))
        parts = [betas[i : i + step] for i in range(0, len(betas), step)]
        return np.concatenate([log_predictive(self.old, self.prior, self.task, part) for part in parts])

    def slope(self, beta: float) -> float:
        return float(log_predictive_slope(self.old, self.prior, self.task, beta))

    def maxima(self, grid: Array) -> list[float]:
        """Local maxima: one between the neighbors of every grid point that is not below either of them."""
        values = self.values(grid)
        inner = np.flatnonzero((values[1:-1] >= values[:-2]) & (values[1:-1] >= values[2:])) + 1
        ends = [(grid[0], grid[1]), (grid[-2], grid[-1])]
        return [self._between(low, high) for low, high in [(grid[i - 1], grid[i + 1]) for i in inner] + ends]

    def _between(self, low: float, high: float) -> float:
        """The zero of the slope from positive to negative; an end of the interval if there is none."""
        if self.slope(low) <= 0:
            return float(low)
        if self.slope(high) >= 0:
            return float(high)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.slope(middle) > 0 else (low, middle)
        return float(low)


def _grid(points: int) -> Array:
    """Even steps, and logarithmic steps towards both ends, where maxima lie if variances differ much."""
    near = np.logspace(-15, -2, points // 4)
    return np.unique(np.concatenate([np.linspace(0, 1, points), near, 1 - near]))


def _check(old: Gaussian, prior: Gaussian, task: Evidence) -> None:
    shapes = {"old": old.mean.shape, "prior": prior.mean.shape, "task": task.optimum.shape}
    for name, shape in shapes.items():
        if shape != (len(task.optimum),):
            raise ConfigError(f"best_rate takes single beliefs over the same parameters; {name} has shape {shape}.")
