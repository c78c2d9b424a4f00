"""beta*, the rate of forgetting that makes the new task most probable (Eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np

from kenyon.errors import ConfigError
from kenyon.paper.theory.beliefs import Array, Evidence, Gaussian
from kenyon.paper.theory.forgetting import log_predictive, log_predictive_slope

How = Literal["one parameter", "equal variances", "search"]
SAME = 1e-14  # relative: a smaller gain is none
MISSED = 1e-12  # relative: more than the rounding of a long sum
AT_ONCE = 2**20  # numbers of a batch of rates


@dataclass(frozen=True)
class BestRate:
    """The largest log_predictive on [0, 1]. The first two ways are closed forms."""

    beta: float
    log_predictive: float
    gain: float  # over beta = 0, where nothing is forgotten
    how: How
    excess: float  # certificate: the most that any of the `checked` rates has above it, 0 or rounding
    checked: int


def best_rate(old: Gaussian, prior: Gaussian, task: Evidence) -> BestRate:
    """The maximiser, 0 where forgetting does not help at all.

    With one parameter there is a single maximum (see `_one_parameter`), and likewise with equal variances. Otherwise
    several are possible: every local maximum of a grid is sharpened by bisection of the slope.
    """
    _check(old, prior, task)
    problem = _Problem(old, prior, task)
    if len(task.optimum) == 1:
        return problem.best("one parameter", _one_parameter(old, prior, task), _grid(1499))
    if np.array_equal(old.variance, prior.variance):
        return problem.best("equal variances", _equal_variances(old, prior, task), _grid(1499))
    for points in (1000, 4000, 16000):  # finer where the check, on other rates, finds what the search has missed
        found = problem.best("search", problem.maxima(_grid(points)), _grid(points + points // 2 - 1))
        if found.excess <= MISSED * (1 + abs(found.log_predictive)):
            break
    return found


def _one_parameter(old: Gaussian, prior: Gaussian, task: Evidence) -> list[float]:
    """Where the slope is zero and falling, from a quadratic equation: one number, or none within (0, 1).

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
    """v does not move, m does on a straight line: the log probability is a parabola."""
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
        """The best of the candidates inside [0, 1] and its two ends, held against the rates of a grid."""
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
        """Between the neighbours of every point that is not below either."""
        values = self.values(grid)
        inner = np.flatnonzero((values[1:-1] >= values[:-2]) & (values[1:-1] >= values[2:])) + 1
        ends = [(grid[0], grid[1]), (grid[-2], grid[-1])]
        return [self._between(low, high) for low, high in [(grid[i - 1], grid[i + 1]) for i in inner] + ends]

    def _between(self, low: float, high: float) -> float:
        """Where the slope goes from positive to negative; an end, if it does not."""
        if self.slope(low) <= 0:
            return float(low)
        if self.slope(high) >= 0:
            return float(high)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.slope(middle) > 0 else (low, middle)
        return float(low)


def _grid(points: int) -> Array:
    """Even steps, and steps that halve towards both ends: where variances differ much, things happen there."""
    near = np.logspace(-15, -2, points // 4)
    return np.unique(np.concatenate([np.linspace(0, 1, points), near, 1 - near]))


def _check(old: Gaussian, prior: Gaussian, task: Evidence) -> None:
    shapes = {"old": old.mean.shape, "prior": prior.mean.shape, "task": task.optimum.shape}
    for name, shape in shapes.items():
        if shape != (len(task.optimum),):
            raise ConfigError(f"best_rate takes single beliefs over the same parameters; {name} has shape {shape}.")
