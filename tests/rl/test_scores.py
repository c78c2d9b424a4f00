"""NAR, NP and NS by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kenyon.errors import ConfigError, ResultsError
from kenyon.rl.scores import accumulated, accumulated_curve, after_each, measured, plasticity, reference, stability

NAN = math.nan

# Three games, two evaluations while each is learned.
RUN = np.array(
    [
        [5.0, NAN, NAN],
        [10.0, NAN, NAN],
        [8.0, 20.0, NAN],
        [6.0, 40.0, NAN],
        [4.0, 30.0, 1.0],
        [5.0, 10.0, 3.0],
    ]
)
BEST = np.array([10.0, 50.0, 2.0])


def test_the_scores_after_each_game_are_those_of_its_last_evaluation() -> None:
    np.testing.assert_equal(after_each(RUN), np.array([[10, NAN, NAN], [6, 40, NAN], [5, 10, 3]]))


def test_measures_by_hand() -> None:
    R = after_each(RUN)
    assert accumulated(R, BEST) == pytest.approx(5 / 10 + 10 / 50 + 3 / 2)
    assert plasticity(R, BEST) == pytest.approx((40 / 50 + 3 / 2) / 2)
    assert stability(R) == pytest.approx((5 / 10 + 10 / 40) / 2)


def test_the_curve_accumulates_over_the_games_learned_so_far() -> None:
    expected = [0.5, 1.0, 0.8 + 0.4, 0.6 + 0.8, 0.4 + 0.6 + 0.5, 0.5 + 0.2 + 1.5]
    np.testing.assert_allclose(accumulated_curve(RUN, BEST), expected)


def test_the_reference_is_the_best_of_each_run_over_all_evaluations_and_their_mean() -> None:
    other = RUN * 3
    np.testing.assert_allclose(reference([RUN]), [10, 40, 3])
    np.testing.assert_allclose(reference([RUN, other]), [20, 80, 6])


def test_fine_tuning_against_itself_has_full_plasticity_where_its_last_scores_are_its_best() -> None:
    kept = np.array([[1.0, NAN], [2.0, NAN], [2.0, 3.0], [2.0, 6.0]])
    whole = measured([kept], reference([kept]))
    assert whole.nar is not None and whole.np is not None and whole.ns is not None
    assert (whole.nar.mean, whole.np.mean, whole.ns.mean) == (2.0, 1.0, 1.0)
    assert whole.curve[-1] == whole.nar.mean
    assert np.isnan(whole.curve_sem).all()


def test_summary_over_runs() -> None:
    found = measured([RUN, RUN * 3], BEST)
    assert found.nar is not None and found.ns is not None
    assert found.nar.mean == pytest.approx(2 * 2.2)
    assert found.nar.sem == pytest.approx(2.2)  # 2.2 and 6.6: standard deviation 3.11, by the root of two
    assert found.ns.sem == pytest.approx(0.0)  # a ratio of scores does not know their scale
    np.testing.assert_allclose(found.curve, 2 * accumulated_curve(RUN, BEST))
    np.testing.assert_allclose(found.curve_sem, accumulated_curve(RUN, BEST))


def test_a_game_that_never_scored_has_no_stability() -> None:
    R = np.array([[-4.0, NAN, NAN], [-5.0, 8.0, NAN], [3.0, 2.0, 1.0]])
    assert stability(R) == 0.25
    assert stability(np.array([[0.5, NAN], [0.25, 1.0]])) == 0.5  # however small its score was
    assert math.isnan(stability(np.array([[0.0, NAN], [1.0, 1.0]])))


def test_one_game_has_no_plasticity_or_stability() -> None:
    found = measured([np.array([[2.0], [3.0]])], np.array([3.0]))
    assert found.nar is not None and found.nar.mean == 1.0
    assert found.np is None and found.ns is None


def test_errors_of_what_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="5 evaluations are not equally many for each of 3 games"):
        after_each(RUN[:5])
    with pytest.raises(ResultsError, match=r"never scored above 0 in Boxing \(-3\)"):
        reference([np.array([[1.0, NAN], [1.0, -3.0]])], ["Gopher", "Boxing"])
    with pytest.raises(ConfigError, match="no run of it"):
        reference([])
    with pytest.raises(ConfigError, match="no complete run"):
        measured([], BEST)
