"""Propositions 1 and 2: numbers worked by hand, the text's claims, and where they hold."""

from __future__ import annotations

from itertools import pairwise
from math import e, exp, log, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kenyon.paper.theory import (
    Cover,
    Space,
    balls,
    cover_c1,
    cover_c2,
    h_divergence,
    learners_tighten,
    log_balls,
    norm_cover,
    plasticity_bound,
    quadratic_flatness,
    r1,
    r2,
    single_cover,
    stability_bound,
)

deltas = st.floats(0.001, 0.5)
samples = st.integers(10, 10**6)


def test_covers_by_hand() -> None:
    # N = 100, d = 10 in two halves, delta = 2 / e (so ln(2/delta) = 1): 5 ln 20 = 14.978661, 10 ln 10 = 23.025851.
    space, delta = Space.shared(10, 2), 2 / e
    c1 = cover_c1([60, 40], space, delta)
    assert c1.terms["largest learner"] == pytest.approx(sqrt((14.978661 + log(2) + 1) / 100), rel=1e-6)
    assert c1.terms["union"] == pytest.approx(sqrt(24.025851 / 100), rel=1e-6)
    assert c1.total == pytest.approx(0.408310 + 0.490162, rel=1e-5)
    assert cover_c2(100, space, delta).total == c1.total  # the same formula of other samples


def test_the_proofs_form_by_hand() -> None:
    space, delta = Space.shared(10, 2), 2 / e
    c1, c2 = cover_c1([100], space, delta, "proof"), cover_c2(100, space, delta, "proof")
    stated = cover_c1([100], space, delta)
    assert c1.terms["largest learner"] == pytest.approx(stated.terms["largest learner"] / sqrt(2))
    assert c1.terms["union"] == stated.terms["union"]
    assert c2.terms["largest learner"] == c1.terms["largest learner"]
    # S46 has ln(1/delta) = 1 - ln 2 in its second root.
    assert c2.terms["union"] == pytest.approx(sqrt((10 * log(10) + 1 - log(2)) / 100))


@settings(deadline=None)
@given(samples, st.floats(0.01, 1), deltas)
def test_one_learner_has_twice_the_root(N: int, part: float, delta: float) -> None:
    d = part * N
    for cover in (cover_c1([N], Space((d,), d), delta), cover_c2(N, Space((d,), d), delta)):
        assert cover.total == pytest.approx(single_cover(N, d, delta))
        assert cover.total == pytest.approx(2 * sqrt((d * log(N / d) + log(2 / delta)) / N))


@settings(deadline=None)
@given(samples, st.floats(0.001, 1), st.integers(1, 30), deltas)
def test_when_several_learners_tighten(N: int, part: float, K: int, delta: float) -> None:
    d = part * N
    space = Space.shared(d, K)
    less = cover_c2(N, space, delta).total < single_cover(N, d, delta) * (1 - 1e-12)
    assume(abs(cover_c2(N, space, delta).total / single_cover(N, d, delta) - 1) > 1e-9)
    assert learners_tighten(N, space) == less


def test_smaller_dimensions_alone_do_not_tighten() -> None:
    """The text concludes C(K > 1) < C(K = 1) from d_i < d. With 4 samples, d = 2 and d_i = 1 it is the other way."""
    space = Space.shared(2, 2)
    assert not learners_tighten(4, space)
    assert cover_c2(4, space, 0.1).total > single_cover(4, 2, 0.1)
    assert learners_tighten(100, space)
    # Nor beyond d = N / e, where d ln(N/d) falls with d.
    assert not learners_tighten(1000, Space((500.0, 500.0), 1000.0))


def test_with_many_samples_more_learners_tighten_further() -> None:
    totals = [cover_c1([2250] * 19, Space.shared(100, K), 0.05).total for K in range(1, 21)]
    assert all(after < before for before, after in pairwise(totals))


@settings(deadline=None)
@given(st.floats(1, 50), deltas)
def test_more_samples_and_less_confidence_tighten(d: float, delta: float) -> None:
    totals = [cover_c2(N, Space.shared(d, 3), delta).total for N in (200, 400, 10_000)]
    assert totals[0] > totals[1] > totals[2] > 0
    assert cover_c2(200, Space.shared(d, 3), delta / 2).total > totals[0]


def test_balls() -> None:
    assert balls(3.0, 2.0, 2) == 3  # 1.5^2 = 2.25
    assert balls(1.0, 2.0, 5) == 1
    assert balls(1.0, 2.0, 5000) == 1  # 2^-5000 is no number any more
    assert log_balls(2 * e, 2.0, 7) == pytest.approx(7)
    assert log_balls(10.0, 1.0, 10**6) == pytest.approx(1e6 * log(10))


# Proposition 2


def test_r_by_hand() -> None:
    # N = 101, M = 2, delta = 1/2: ln N = 4.615121, (1 + sqrt(ln N / 2))^2 = 6.345710, ln(N / delta) = 5.308268.
    assert r2(3.0, 2, 101, 0.5) == pytest.approx(
        sqrt((2 * log(1 + 3 * (1 + sqrt(log(101) / 2)) ** 2) + 4 * log(202)) / 100)
    )
    assert r2(3.0, 2, 101, 0.5) == pytest.approx(sqrt((2 * log(1 + 3 * 6.345710) + 4 * 5.308268) / 100), rel=1e-6)
    assert r1(3.0, 2, [50, 51], 0.5) == r2(3.0, 2, 101, 0.5)
    assert r2(0.0, 7, 101, 0.5) == pytest.approx(sqrt(4 * log(202) / 100))  # no weights: the first term is gone


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(1.001, 10), st.integers(1, 10**6), st.integers(2, 10**6), deltas)
def test_r_strictly_increases_with_the_norm(ratio: float, by: float, M: int, N: int, delta: float) -> None:
    assert 0 < r2(ratio, M, N, delta) < r2(ratio * by + 0.01, M, N, delta)


@settings(deadline=None)
@given(st.floats(0, 100), st.integers(1, 10**4), deltas)
def test_more_old_tasks_lower_c1_and_leave_c2(ratio: float, M: int, delta: float) -> None:
    c1 = [r1(ratio, M, [500] * t, delta) for t in (1, 2, 5, 19)]
    assert all(after < before for before, after in pairwise(c1))
    assert c1[0] == r2(ratio, M, 500, delta)


def test_more_old_tasks_make_the_norm_matter_less() -> None:
    """ "C_1 will decrease more rapidly as more tasks are introduced": in value, not by its slope in the norm."""
    drops = [r1(4.0, 100, [500] * t, 0.05) - r1(2.0, 100, [500] * t, 0.05) for t in (1, 5, 19)]
    assert drops[0] > drops[1] > drops[2] > 0


def test_assembled_is_two_roots() -> None:
    found = norm_cover(3.0, 20, 500, 0.1, dimension=20, form="assembled")
    assert found.terms["norm"] == pytest.approx(r2(3.0, 20, 500, 0.05))
    assert found.terms["union"] == pytest.approx(sqrt((20 * log(25) + log(20)) / 500))
    assert norm_cover(3.0, 20, 500, 0.1).total == r2(3.0, 20, 500, 0.1)


# The bounds


def test_bounds_are_their_terms() -> None:
    cover = Cover({"largest learner": 0.1, "union": 0.2})
    for make in (plasticity_bound, stability_bound):
        bound = make(0.05, [0.1, 0.3], cover)
        assert bound.terms == pytest.approx(
            {"flatness": 0.05, "discrepancy": 0.2, "cover, largest learner": 0.1, "cover, union": 0.2}
        )
        assert bound.total == pytest.approx(sum(bound.terms.values())) == pytest.approx(0.55)
        assert not bound.vacuous and make(0.5, [0.4], cover).vacuous


@settings(deadline=None)
@given(st.floats(0, 10), st.floats(0, 3), st.floats(-3, 3))
def test_flatness_of_a_quadratic(curvature: float, radius: float, centre: float) -> None:
    """The worst of a ball is on its edge, whichever theta it is around; the least worst is around the minimum."""
    theta = centre + np.linspace(-1, 1, 201)
    worst = np.maximum(*(0.5 * curvature * (theta - centre + step) ** 2 for step in (-radius, radius)))
    assert worst.min() == pytest.approx(quadratic_flatness(curvature, radius), rel=1e-9, abs=1e-12)


def test_divergence_by_hand() -> None:
    first = [[1, 1, 0, 0], [1, 0, 0, 0]]  # says 1 to 1/2 and 1/4
    second = [[1, 0, 0, 0], [1, 1, 1, 0]]  # 1/4 and 3/4
    assert h_divergence(first, second) == pytest.approx(2 * 0.5)
    assert h_divergence(first, first) == 0
    assert h_divergence([[1, 1]], [[0, 0, 0]]) == 2


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
def test_lemmas_1_and_2(seed: int, sources: int, hypotheses: int) -> None:
    """A mixture is no farther than its parts on average; risks differ by half the divergence at most."""
    draw = np.random.default_rng(seed)
    parts = draw.random((sources, hypotheses, 8)) < 0.5
    goal = draw.random((hypotheses, 8)) < draw.random()
    mixture = np.concatenate(list(parts), axis=1)
    found = h_divergence(mixture, goal)
    assert found <= np.mean([h_divergence(part, goal) for part in parts]) + 1e-12
    risks = np.abs(mixture.mean(1) - goal.mean(1))  # each hypothesis as where a pair disagrees
    assert (risks <= found / 2 + 1e-12).all()
    assert h_divergence(goal, mixture) == found


def test_confidence_of_lemma_3() -> None:
    """(N/d)^d exp(-2 N eps^2) = delta, S19, with the root of half its size that S17 has."""
    N, d, delta = 300, 12.0, 0.07
    epsilon = sqrt((d * log(N / d) + log(1 / delta)) / (2 * N))
    assert (N / d) ** d * exp(-2 * N * epsilon**2) == pytest.approx(delta)
    assert single_cover(N, d, 2 * delta) / 2 == pytest.approx(sqrt(2) * epsilon)
