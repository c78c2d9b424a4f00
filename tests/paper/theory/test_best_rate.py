"""Eq. 5: the probability of the new task, its slope and its maximum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from kenyon.paper.theory import Evidence, Gaussian, beliefs, best_rate, forget, log_predictive, log_predictive_slope
from tests.paper.theory.beliefs import log_density, log_integral, problems, rates, whole

GRID = np.linspace(0, 1, 2001)
Problem = tuple[Gaussian, Gaussian, Evidence]


@settings(deadline=None)
@given(problems(most=1), rates)
def test_it_is_the_integral(problem: Problem, beta: float) -> None:
    old, prior, task = problem
    hat = forget(old, prior, beta).belief
    near = hat.given(task)  # where the product is not nothing
    theta = whole(float(near.mean[0]), float(near.variance[0]))
    product = task.log_likelihood(theta[:, None]) + log_density(theta, float(hat.mean[0]), float(hat.variance[0]))
    assert log_integral(theta, product) == pytest.approx(float(log_predictive(*problem, beta)), abs=1e-9)


@settings(deadline=None)
@given(problems(), st.floats(0.01, 0.99))
def test_slope_is_the_derivative(problem: Problem, beta: float) -> None:
    step = 1e-5
    ends = log_predictive(*problem, np.array([beta - step, beta + step]))
    slope = float(log_predictive_slope(*problem, beta))
    assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_nothing_on_a_grid_is_better(problem: Problem) -> None:
    best = best_rate(*problem)
    values = log_predictive(*problem, GRID)
    slack = 1e-12 * (1 + abs(best.log_predictive))
    assert 0 <= best.beta <= 1
    assert values.max() <= best.log_predictive + slack
    assert best.excess <= slack
    assert best.log_predictive == pytest.approx(float(log_predictive(*problem, best.beta)))
    assert best.gain == pytest.approx(best.log_predictive - values[0])


@settings(max_examples=60, deadline=None)
@given(problems(most=1))
def test_one_parameter_has_one_maximum(problem: Problem) -> None:
    """So every rate in (0, beta*] is better than none, as the supplement says that "generally" there is one."""
    best = best_rate(*problem)
    assert best.how == "one parameter"
    values = log_predictive(*problem, GRID)
    noise = 1e-12 * (1 + np.abs(values).max())
    before, after = values[best.beta >= GRID], values[best.beta <= GRID]
    assert (np.diff(before) >= -noise).all()
    assert (np.diff(after) <= noise).all()


def test_by_hand_equal_variances() -> None:
    # m = 4 (1 - beta) meets theta_B = 1 at 3/4, whatever the common variance and F are.
    best = best_rate(Gaussian(4, 2), Gaussian(0, 2), Evidence(1, 5))
    assert best.beta == pytest.approx(0.75)
    assert best_rate(Gaussian([4, 4], 2), Gaussian([0, 0], 2), Evidence([1, 1], 5)).beta == pytest.approx(0.75)
    # two parameters that want 1/2 and 1, the second three times as much: weights F / (1 + F), times the way squared
    two = best_rate(Gaussian([2, 2], 1), Gaussian([0, 0], 1), Evidence([1, 0], [1 / 5, 1.0]))
    w = np.array([1 / 6, 1 / 2])
    assert two.how == "equal variances"
    assert two.beta == pytest.approx((w * [0.5, 1.0]).sum() / w.sum())


def test_by_hand_equal_means() -> None:
    # v^2 + 1/F = (theta_B - mu)^2 = 4 at the best; with 1/F = 1: v^2 = 3 = 1 / ((1-beta)/1 + beta/9), beta = 3/4.
    best = best_rate(Gaussian(0, 1), Gaussian(0, 9), Evidence(2, 1))
    assert best.beta == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("old", "prior", "task"),
    [
        (Gaussian(1, 1), Gaussian(5, 1), Evidence(0, 1)),  # the new task lies on the other side of the old
        (Gaussian(1, 0.1), Gaussian(1, 10), Evidence(1, 1)),  # and where the old one is, narrowly
        (Gaussian(1, 1), Gaussian(5, 2), Evidence(7, 0)),  # says nothing
        (Gaussian([1, 2], [1, 2]), Gaussian([1, 2], [1, 2]), Evidence([5, 5], 1)),  # nothing to forget
    ],
)
def test_where_forgetting_does_not_help(old: Gaussian, prior: Gaussian, task: Evidence) -> None:
    best = best_rate(old, prior, task)
    assert best.beta == 0 and best.gain == 0


def test_all_is_forgotten_where_the_prior_is_better_throughout() -> None:
    assert best_rate(Gaussian(5, 1), Gaussian(0, 1), Evidence(-1, 1)).beta == 1


@settings(max_examples=40, deadline=None)
@given(problems(most=1))
def test_closed_form_is_the_bracketed_search(problem: Problem) -> None:
    def below(beta: float) -> float:
        return -float(log_predictive(*problem, min(max(beta, 0.0), 1.0)))

    found = minimize_scalar(below, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
    assert best_rate(*problem).log_predictive >= -found.fun - 1e-9 * (1 + abs(found.fun))


def test_search_agrees_with_the_closed_form() -> None:
    """A second parameter that hardly counts sends the same problem to the search."""
    one = best_rate(Gaussian(0, 1), Gaussian(1, 9), Evidence(3, 1))
    two = best_rate(Gaussian([0, 0], [1, 1]), Gaussian([1, 0], [9, 2]), Evidence([3, 0], [1, 0]))
    assert (one.how, two.how) == ("one parameter", "search")
    assert 0 < one.beta < 1
    assert two.beta == pytest.approx(one.beta, abs=1e-12)


def test_two_maxima_and_the_higher_is_found() -> None:
    """Each belief is narrow in one parameter, where the task disagrees: a rate near 0 or near 1, not between."""
    old, prior = Gaussian([0.0, 0.0], [1.0, 0.01]), Gaussian([0.0, 0.0], [0.01, 1.0])
    task = Evidence([0.5, 0.525], 100.0)
    values = log_predictive(old, prior, task, GRID)
    peaks = GRID[1:-1][(values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])]
    assert len(peaks) == 2 and peaks[0] < 0.1 and peaks[1] > 0.9
    best = best_rate(old, prior, task)
    assert best.how == "search"
    assert best.beta == pytest.approx(peaks[1], abs=1e-3)  # the one that forgets the narrow belief in the farther


@pytest.mark.parametrize(
    ("variances", "others", "task"),
    [
        ([1.0, 0.02], [0.02, 1.0], Evidence([0.6, 0.63], 100.0)),
        ([0.11, 1.95], [0.72, 0.16], Evidence([-1.5, -1.7], 50.0)),  # half-way the slope is towards the lower one
    ],
)
def test_the_higher_of_two_maxima_in_the_middle_is_found_whichever_comes_first(
    variances: list[float], others: list[float], task: Evidence
) -> None:
    """Beliefs that change places turn beta into 1 - beta."""
    one, other = Gaussian([0.0, 0.0], variances), Gaussian([0.0, 0.0], others)
    for old, prior in ((one, other), (other, one)):
        values = log_predictive(old, prior, task, GRID)
        peaks = GRID[1:-1][(values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])]
        assert len(peaks) == 2 and 0.05 < peaks[0] < 0.25 and 0.75 < peaks[1] < 0.95
        best = best_rate(old, prior, task)
        assert best.beta == pytest.approx(GRID[values.argmax()], abs=1e-3)
        assert best.log_predictive >= values.max()


def test_far_apart_variances() -> None:
    """The maximum may sit within 1e-6 of beta = 1."""
    old, prior, task = Gaussian(0, 1e-6), Gaussian(0, 1e6), Evidence(3, 1)
    best = best_rate(old, prior, task)
    assert 1 - best.beta < 1e-5 and best.beta < 1
    assert forget(old, prior, best.beta).v2 == pytest.approx(9 - 1, rel=1e-4)
    again = best_rate(
        Gaussian([0, 0], [1e-6, 1]), Gaussian([0, 0], [1e6, 1]), Evidence([3, 0], [1, 0])
    )  # the same, searched
    assert again.how == "search" and again.beta == pytest.approx(best.beta, rel=1e-12)


@pytest.mark.parametrize("numbers", [1, 100])
def test_batches_of_rates_change_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With very many parameters a batch is one rate."""
    problem = Gaussian([0, 0, 1], [1, 2, 1]), Gaussian([1, 0, 2], [9, 2, 3]), Evidence([3, 0, 1], [1, 0.5, 2])
    together = best_rate(*problem)
    monkeypatch.setattr(beliefs, "AT_ONCE", numbers)
    assert best_rate(*problem) == together and together.how == "search"


def test_many_parameters() -> None:
    n = 5000
    draw = np.random.default_rng(0)
    old = Gaussian(draw.normal(size=n), np.exp(draw.normal(size=n)))
    best = best_rate(old, Gaussian(np.zeros(n), 1.0), Evidence(draw.normal(size=n), np.exp(draw.normal(size=n))))
    assert best.excess == 0 and 0 < best.beta <= 1
