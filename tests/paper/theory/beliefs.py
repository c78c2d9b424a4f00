"""Random beliefs and tasks, and numerical integrals."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from kenyon.paper.theory import Evidence, Gaussian

means = st.floats(-5, 5)
variances = st.floats(-3, 3).map(lambda x: float(np.exp(x)))
rates = st.floats(0, 1)
fishers = st.one_of(st.just(0.0), variances)


@st.composite
def problems(draw: st.DrawFn, least: int = 1, most: int = 4) -> tuple[Gaussian, Gaussian, Evidence]:
    """Draw the belief after task A, the prior, and task B, over the same parameters."""
    n = draw(st.integers(least, most))

    def vector(elements: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(elements, min_size=n, max_size=n))

    old, prior = (Gaussian(vector(means), vector(variances)) for _ in range(2))
    return old, prior, Evidence(vector(means), vector(fishers))


def log_density(theta: np.ndarray, mean: float, variance: float) -> np.ndarray:
    """S1 and S2, as printed."""
    return -((theta - mean) ** 2) / (2 * variance) - 0.5 * np.log(2 * np.pi * variance)


def log_integral(theta: np.ndarray, log_values: np.ndarray) -> float:
    """By the trapezoidal rule, which for a Gaussian seen whole is exact to rounding."""
    top = log_values.max()
    return float(top + np.log(trapezoid(np.exp(log_values - top), theta)))


def whole(mean: float, variance: float) -> np.ndarray:
    return mean + np.sqrt(variance) * np.linspace(-12, 12, 2001)
