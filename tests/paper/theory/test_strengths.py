"""S9: two penalties instead of a rate, in two ways, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.paper.theory import (
    Evidence,
    Gaussian,
    Scales,
    best_rate,
    expanded_af1,
    expanded_af1_literal,
    expanded_af2,
    expanded_af2_literal,
    forgetting_af1,
    forgetting_af2,
    lambdas_af1,
    lambdas_af2,
    learner_lambdas,
    loss,
    minimiser,
    target,
)
from tests.paper.theory.beliefs import problems, rates

below_one = st.floats(0, 0.999)
scale = st.floats(0.01, 100)
Problem = tuple[Gaussian, Gaussian, Evidence]


def test_by_hand() -> None:
    assert lambdas_af1(0.2, Scales(sp=10, af=5)) == (8, 1)
    assert lambdas_af2(0.2, Scales(sp=10, af=5)) == (10, 1.25)
    beta, factor = forgetting_af1(6, 4)  # six parts old, four parts new, ten times too strong
    assert beta == pytest.approx(0.4) and factor == pytest.approx(10)
    beta, factor = forgetting_af2(6, 4)
    assert beta == pytest.approx(0.4) and factor == pytest.approx(6)


@settings(deadline=None)
@given(rates, scale, scale)
def test_there_and_back_af1(beta: float, sp: float, af: float) -> None:
    scales = Scales(sp, af)
    found = forgetting_af1(*lambdas_af1(beta, scales), scales)
    assert found.beta == pytest.approx(beta, abs=1e-12)
    assert found.factor == pytest.approx(1)


@settings(deadline=None)
@given(below_one, scale, scale)
def test_there_and_back_af2(beta: float, sp: float, af: float) -> None:
    scales = Scales(sp, af)
    found = forgetting_af2(*lambdas_af2(beta, scales), scales)
    assert found.beta == pytest.approx(beta, abs=1e-12)
    assert found.factor == pytest.approx(1)


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.just(0.0) | st.floats(1e-6, 1e6), scale, scale)
def test_any_two_strengths_are_a_rate_and_a_factor(lambda_sp: float, lambda_af: float, sp: float, af: float) -> None:
    scales = Scales(sp, af)
    one, two = (f(lambda_sp, lambda_af, scales) for f in (forgetting_af1, forgetting_af2))
    assert one.beta == two.beta  # both read the ratio
    for found, lambdas in ((one, lambdas_af1), (two, lambdas_af2)):
        if found.beta < 0.999999:  # closer to 1, 1 - beta has lost its digits
            back = [found.factor * x for x in lambdas(found.beta, scales)]
            np.testing.assert_allclose(back, [lambda_sp, lambda_af], rtol=1e-8)


def test_larger_rates() -> None:
    """ "AF-2 increases lambda_AF while keeping lambda_SP; AF-1 increases lambda_AF while decreasing lambda_SP.\""""
    betas = np.linspace(0, 0.99, 50)
    one, two = lambdas_af1(betas), lambdas_af2(betas)
    assert (np.diff(one.sp) < 0).all() and (np.diff(one.af) > 0).all()
    assert (np.diff(two.sp) == 0).all() and (np.diff(two.af) > 0).all()


@settings(deadline=None)
@given(problems(), below_one)
def test_both_ways_find_the_mode_of_the_target(problem: Problem, beta: float) -> None:
    """Eq. 6: with the posterior of task B, prior included, as what AF-2 renormalises with."""
    old, prior, task = problem
    mode = target(old, prior, task, beta).mode
    one = minimiser(old, task, lambdas_af1(beta), expanded_af1(prior))
    two = minimiser(old, task, lambdas_af2(beta), expanded_af2(prior, task))
    np.testing.assert_allclose(one, mode, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(two, mode, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(problems(), below_one)
def test_the_two_losses_are_one_up_to_a_factor_and_a_constant(problem: Problem, beta: float) -> None:
    """S9 term by term: (1-beta) times the loss of AF-2 has the differences of the loss of AF-1."""
    old, prior, task = problem
    theta = np.stack([task.optimum, old.mean, prior.mean, old.mean + 1])
    one = loss(theta, old, task, lambdas_af1(beta), expanded_af1(prior))
    two = (1 - beta) * loss(theta, old, task, lambdas_af2(beta), expanded_af2(prior, task))
    np.testing.assert_allclose(one - one[0], two - two[0], rtol=1e-8, atol=1e-7)
    made = target(old, prior, task, beta).log_density(theta)
    np.testing.assert_allclose(one - one[0], made[0] - made, rtol=1e-8, atol=1e-7)


def test_as_written_af2_leaves_the_prior_out() -> None:
    old, task, literal = Gaussian(4, 1), Evidence(0, 1), expanded_af2_literal(Evidence(0, 1))
    near, flat = Gaussian(10, 1), Gaussian(10, 1e9)
    found = minimiser(old, task, lambdas_af2(0.5), literal)
    # (F_B (1 + 1) * 0 + 1 * 4) / (1 + 1 + 1) = 4/3, wherever the prior is; AF-1 with it at 10: (0 + 2 + 5) / 2.
    assert found == pytest.approx(4 / 3)
    assert target(old, near, task, 0.5).mode == pytest.approx(3.5)
    assert target(old, flat, task, 0.5).mode == pytest.approx(4 / 3, rel=1e-6)


def test_as_written_af1_is_a_prior_around_zero() -> None:
    """theta_e = 0 and I_e = 1, with the prior's precision in the scale of lambda_AF."""
    old, prior, task = Gaussian([3, -1], [1, 2]), Gaussian([0, 0], 0.25), Evidence([1, 1], [2, 0.5])
    literal = minimiser(old, task, lambdas_af1(0.3, Scales(af=1 / 0.25)), expanded_af1_literal(2))
    np.testing.assert_allclose(literal, target(old, prior, task, 0.3).mode)


def test_no_forgetting_is_ewc() -> None:
    """Eq. 11: lambda_AF is 0, and what is renormalised with does not matter."""
    old, task = Gaussian([3, -1], [1, 2]), Evidence([1, 1], [2, 0.5])
    ewc = (task.fisher * task.optimum + old.precision * old.mean) / (task.fisher + old.precision)
    for lambdas in (lambdas_af1(0.0), lambdas_af2(0.0)):
        np.testing.assert_allclose(minimiser(old, task, lambdas, expanded_af1_literal(2)), ewc)
        assert lambdas == (1, 0)


def test_rates_are_an_axis() -> None:
    old, prior, task = Gaussian([3, -1], [1, 2]), Gaussian([0, 0], 1), Evidence([1, 1], [2, 0.5])
    betas = np.array([0.0, 0.5, 0.9])
    together = minimiser(old, task, lambdas_af1(betas), expanded_af1(prior))
    np.testing.assert_allclose(together, target(old, prior, task, betas).mode)


def test_learners_share_the_strength() -> None:
    found = learner_lambdas(2.0, [0.5, 0.25, 0.125, 0.125])
    np.testing.assert_allclose(found, [4, 2, 1, 1])
    assert found.mean() == 2
    beta = forgetting_af1(8.0, found).beta  # lambda_SP is common: rates differ
    np.testing.assert_allclose(beta, [1 / 3, 1 / 5, 1 / 9, 1 / 9])


def test_the_best_rate_moves_the_solution_towards_the_new_task() -> None:
    old, prior, task = Gaussian(4, 1), Gaussian(0, 1), Evidence(1, 1)
    beta = best_rate(old, prior, task).beta
    at = [minimiser(old, task, lambdas_af1(b), expanded_af1(prior))[0] for b in (0.0, beta / 2, beta)]
    away = np.abs(np.array(at) - 1)
    assert (np.diff(away) < 0).all() and away[-1] == pytest.approx(0)
