"""The simulation of a queue: hand-worked cases, and bounds that hold for every queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kenyon.sweep.costs import Dying, longest_first, simulate

TIMES = st.lists(st.floats(0.01, 1000), min_size=1, max_size=30)


def test_by_hand() -> None:
    # Two workers, [2, 2, 3]: both end at 2, one begins the 3. Longest first: 3 beside 2 and 2.
    assert simulate([2, 2, 3], 2).seconds == 5
    assert [[2, 2, 3][number] for number in longest_first([2, 2, 3])] == [3, 2, 2]
    outlook = simulate([3, 2, 2], 2)
    assert outlook.seconds == 4 and outlook.busy == pytest.approx(7 / 8)
    assert (outlook.deaths, outlook.again) == (0, 0.0)
    assert simulate([3, 2, 2], 10).seconds == 3
    assert simulate([], 3).seconds == 0
    assert simulate([3, 2, 2], 2, start=1).seconds == 5


@given(TIMES, st.integers(1, 12))
def test_between_the_bounds(times: list[float], workers: int) -> None:
    """Never better than the work shared evenly, nor than the longest; nor worse than Graham's bound for any order."""
    total, longest = sum(times), max(times)
    least = max(total / workers, longest)
    for order in (range(len(times)), longest_first(times)):
        end = simulate([times[number] for number in order], workers).seconds
        assert least <= end * (1 + 1e-9)
        assert end <= total / workers + longest * (1 - 1 / workers) + 1e-9 * total


@given(TIMES, st.integers(1, 12), st.integers(0, 1000))
def test_deaths_cost_what_was_not_saved(times: list[float], workers: int, seed: int) -> None:
    dying = Dying(every=200.0, saved=30.0, noticed=60.0, replaced=10.0)
    outlook = simulate(times, workers, dying, seed=seed)
    assert 0 <= outlook.again <= 30.0 * outlook.deaths
    # At worst all that is lost, waited for and replaced stands in one line.
    worst = simulate(times, 1).seconds + outlook.again + outlook.deaths * (60.0 + 10.0)
    assert max(sum(times) / workers, max(times)) <= outlook.seconds * (1 + 1e-9) <= worst * (1 + 2e-9)
    assert simulate(times, workers, Dying(every=1e30), seed=seed).seconds == simulate(times, workers).seconds
