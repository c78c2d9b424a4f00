"""S1 to S8, the target distribution and longer sequences: against integrals, limits and numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from kenyon.paper.theory import (
    Evidence,
    Forgotten,
    Gaussian,
    fisher_remembered,
    fisher_sum,
    forget,
    learn_in_turn,
    memory_weights,
    target,
)
from tests.paper.theory.beliefs import log_density, log_integral, means, problems, rates, variances, whole


def test_numbers_by_hand() -> None:
    # mu_1 = 1, s_1 = 2, mu_2 = 4, s_2 = 1 (variances), beta = 1/4: the denominator is 1/4 * 2 + 3/4 * 1 = 5/4.
    found = forget(Gaussian(1, 2), Gaussian(4, 1), 0.25)
    assert found.v2 == pytest.approx(2 * 1 / 1.25)  # 1.6
    assert found.m == pytest.approx((0.75 * 1 * 1 + 0.25 * 2 * 4) / 1.25)  # 2.2
    assert found.k == pytest.approx((0.75 * 1 * 1 + 0.25 * 2 * 16) / 1.25)  # 7
    # k - m^2 = 2.16, over 2 v^2 = 3.2: 0.675.  v^2 / (2^0.75 * 1^0.25) = 0.951366, its root 0.975380.
    assert found.z == pytest.approx(np.sqrt(1.6 / 2**0.75) * np.exp(-0.675))
    assert found.z == pytest.approx(0.975380 * 0.509156, rel=1e-5)


def literal(mu1: float, s1: float, mu2: float, s2: float, beta: float) -> tuple[float, float, float, float]:
    """S4, S5, S6 and S8 as printed."""
    below = beta * s1 + (1 - beta) * s2
    v2 = s1 * s2 / below
    m = ((1 - beta) * s2 * mu1 + beta * s1 * mu2) / below
    k = ((1 - beta) * s2 * mu1**2 + beta * s1 * mu2**2) / below
    z = np.sqrt(v2 / (s1 ** (1 - beta) * s2**beta)) * np.exp(-(k - m**2) / (2 * v2))
    return v2, m, k, float(z)


@settings(deadline=None)
@given(means, variances, means, variances, rates)
def test_equations_as_printed(mu1: float, s1: float, mu2: float, s2: float, beta: float) -> None:
    found = forget(Gaussian(mu1, s1), Gaussian(mu2, s2), beta)
    v2, m, k, z = literal(mu1, s1, mu2, s2, beta)
    np.testing.assert_allclose(found.v2, v2, rtol=1e-12)
    np.testing.assert_allclose(found.m, m, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.k, k, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.z, z, rtol=1e-7, atol=1e-300)


@settings(deadline=None)
@given(means, variances, means, variances, rates)
def test_z_normalises(mu1: float, s1: float, mu2: float, s2: float, beta: float) -> None:
    found = forget(Gaussian(mu1, s1), Gaussian(mu2, s2), beta)
    theta = whole(float(found.m[0]), float(found.v2[0]))
    mixed = (1 - beta) * log_density(theta, mu1, s1) + beta * log_density(theta, mu2, s2)
    log_z = log_integral(theta, mixed)
    assert log_z == pytest.approx(float(found.log_z), abs=1e-9)
    mean = trapezoid(theta * np.exp(mixed - log_z), theta)
    assert mean == pytest.approx(float(found.m[0]), abs=1e-9)
    assert trapezoid((theta - mean) ** 2 * np.exp(mixed - log_z), theta) == pytest.approx(float(found.v2[0]))


@settings(deadline=None)
@given(problems(), rates)
def test_point_by_point_it_is_the_mixture(problem: tuple[Gaussian, Gaussian, Evidence], beta: float) -> None:
    """S7 in n dimensions: (1-beta) log p_1 + beta log p_2 - log Z is the log density of N(m, v^2), everywhere."""
    old, prior, task = problem
    found = forget(old, prior, beta)
    for theta in (task.optimum, old.mean, found.m + 1):
        mixed = (1 - beta) * old.log_density(theta) + beta * prior.log_density(theta)
        np.testing.assert_allclose(mixed - found.log_z, found.belief.log_density(theta), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(problems())
def test_limits(problem: tuple[Gaussian, Gaussian, Evidence]) -> None:
    old, prior, _ = problem
    for beta, same in ((0.0, old), (1.0, prior)):
        found = forget(old, prior, beta)
        np.testing.assert_allclose(found.m, same.mean, rtol=1e-14)
        np.testing.assert_allclose(found.v2, same.variance, rtol=1e-14)
        np.testing.assert_allclose(found.k, same.mean**2, rtol=1e-14)
        assert found.log_z == 0


@settings(deadline=None)
@given(problems(), st.floats(0.001, 0.999))
def test_between_the_two(problem: tuple[Gaussian, Gaussian, Evidence], beta: float) -> None:
    old, prior, _ = problem
    found = forget(old, prior, beta)
    slack = 1 + 1e-12
    assert (found.v2 <= np.maximum(old.variance, prior.variance) * slack).all()
    assert (found.v2 * slack >= np.minimum(old.variance, prior.variance)).all()
    assert (found.m <= np.maximum(old.mean, prior.mean) + 1e-12).all()
    assert (found.m >= np.minimum(old.mean, prior.mean) - 1e-12).all()
    assert found.log_z <= 0  # Hoelder
    assert (found.k - found.m**2 >= -1e-9).all()


def test_half_is_the_bhattacharyya_coefficient() -> None:
    s1, s2, far = 0.5, 3.0, 2.0
    distance = far**2 / (4 * (s1 + s2)) + 0.5 * np.log((s1 + s2) / (2 * np.sqrt(s1 * s2)))
    assert forget(Gaussian(0, s1), Gaussian(far, s2), 0.5).log_z == pytest.approx(-distance)


def test_log_space() -> None:
    """A million parameters far apart: Z underflows, log Z and the rest do not."""
    n = 10**6
    found = forget(Gaussian(np.zeros(n), 1e-6), Gaussian(np.ones(n), 1e6), 0.5)
    one = forget(Gaussian(0, 1e-6), Gaussian(1, 1e6), 0.5)
    assert found.z == 0
    assert found.log_z == pytest.approx(n * float(one.log_z))
    wide = forget(Gaussian(0, 1e-280), Gaussian(1, 1e280), [0.0, 0.5, 1.0])
    assert np.isfinite(wide.log_z).all() and np.isfinite(wide.v2).all()


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9])
def test_a_flat_prior_only_widens(beta: float) -> None:
    """As sigma_2 grows without end: m -> mu_1 and v^2 -> sigma_1^2 / (1-beta)."""
    found = forget(Gaussian(2, 0.5), Gaussian(-3, 1e14), beta)
    assert found.m == pytest.approx(2)
    assert found.v2 == pytest.approx(0.5 / (1 - beta))


def test_rates_are_an_axis() -> None:
    old, prior, task = Gaussian([1, 2], [1, 3]), Gaussian([0, 0], [2, 2]), Evidence([3, 1], [1, 0.2])
    betas = np.linspace(0, 1, 7)
    together = forget(old, prior, betas)
    assert together.m.shape == (7, 2) and together.log_z.shape == (7,)
    for i, beta in enumerate(betas):
        alone: Forgotten = forget(old, prior, beta)
        np.testing.assert_array_equal(together.m[i], alone.m)
        np.testing.assert_array_equal(together.v2[i], alone.v2)
        np.testing.assert_array_equal(together.log_z[i], alone.log_z)
        np.testing.assert_array_equal(target(old, prior, task, betas).mean[i], target(old, prior, task, beta).mean)


# The target distribution


@settings(deadline=None)
@given(problems(most=1), rates)
def test_target_is_likelihood_times_forgotten(problem: tuple[Gaussian, Gaussian, Evidence], beta: float) -> None:
    old, prior, task = problem
    made, hat = target(old, prior, task, beta), forget(old, prior, beta).belief
    theta = whole(float(made.mean[0]), float(made.variance[0]))
    product = task.log_likelihood(theta[:, None]) + log_density(theta, float(hat.mean[0]), float(hat.variance[0]))
    log_whole = log_integral(theta, product)
    assert log_whole == pytest.approx(float(hat.log_evidence(task)), abs=1e-9)
    np.testing.assert_allclose(product - log_whole, made.log_density(theta[:, None]), atol=1e-9)


@settings(deadline=None)
@given(problems())
def test_no_forgetting_is_bayes_and_all_forgetting_never_saw_task_a(
    problem: tuple[Gaussian, Gaussian, Evidence],
) -> None:
    old, prior, task = problem
    for beta, start in ((0.0, old), (1.0, prior)):
        made = target(old, prior, task, beta)
        np.testing.assert_allclose(made.precision, start.precision + task.fisher, rtol=1e-12)
        by_hand = (start.precision * start.mean + task.fisher * task.optimum) / (start.precision + task.fisher)
        np.testing.assert_allclose(made.mean, by_hand, rtol=1e-9, atol=1e-9)


def test_from_samples_it_is_the_textbook_update() -> None:
    """Samples of N(theta, 2), prior N(0, 1): the posterior by counting, and the evidence as a joint Gaussian."""
    x = np.array([1.0, 2.0, 4.5])
    task = Evidence.of_samples(x, noise=2.0)
    made = Gaussian(0, 1).given(task)
    assert made.precision == pytest.approx(1 + 3 / 2)
    assert made.mean == pytest.approx((7.5 / 2) / 2.5)
    from scipy.stats import multivariate_normal

    joint = multivariate_normal(np.zeros(3), 2 * np.eye(3) + np.ones((3, 3))).logpdf(x)
    assert Gaussian(0, 1).log_evidence(task) == pytest.approx(joint)
    assert task.log_likelihood([0.7]) == pytest.approx(norm.logpdf(x, 0.7, np.sqrt(2)).sum())


def test_fig_3b_is_a_shift() -> None:
    """Equal variances: p_hat = N(mu + (1-beta) a, sigma^2); targets lie (beta - beta') a / (1 + sigma^2 F) apart."""
    mu, a, sigma2, F = 0.5, 3.0, 2.0, 0.25
    betas = np.array([0.0, 0.2, 0.7, 1.0])
    found = forget(Gaussian(mu + a, sigma2), Gaussian(mu, sigma2), betas)
    np.testing.assert_allclose(found.m[:, 0], mu + (1 - betas) * a)
    np.testing.assert_allclose(found.v2, sigma2)
    np.testing.assert_allclose(found.z, np.exp(-betas * (1 - betas) * a**2 / (2 * sigma2)))
    made = found.belief.given(Evidence(-1, F))
    np.testing.assert_allclose(np.diff(made.mean[:, 0]), -np.diff(betas) * a / (1 + sigma2 * F))
    np.testing.assert_allclose(made.variance, sigma2 / (1 + sigma2 * F))


# More than two tasks


TASKS = [Evidence([1.0, 0.0], [2.0, 1.0]), Evidence([-1.0, 3.0], [1.0, 0.0]), Evidence([0.5, 0.5], [3.0, 4.0])]
PRIOR = Gaussian([0.0, 1.0], [2.0, 4.0])


def test_without_forgetting_the_order_does_not_matter() -> None:
    forth, back = learn_in_turn(PRIOR, TASKS, 0.0)[-1], learn_in_turn(PRIOR, TASKS[::-1], 0.0)[-1]
    np.testing.assert_allclose(forth.mean, back.mean)
    np.testing.assert_allclose(forth.precision, PRIOR.precision + sum(t.fisher for t in TASKS))
    np.testing.assert_allclose(fisher_sum([t.fisher for t in TASKS]), [6.0, 5.0])


@settings(deadline=None)
@given(rates)
def test_old_tasks_fade_exponentially(beta: float) -> None:
    fishers = [t.fisher for t in TASKS]
    last = learn_in_turn(PRIOR, TASKS, beta)[-1]
    np.testing.assert_allclose(last.precision, PRIOR.precision + fisher_remembered(fishers, beta), rtol=1e-12)


def test_memory_weights_by_hand() -> None:
    np.testing.assert_allclose(memory_weights(4, 0.5), [0.125, 0.25, 0.5, 1.0])
    np.testing.assert_array_equal(memory_weights(3, 1.0), [0, 0, 1])
    np.testing.assert_array_equal(memory_weights(3, 0.0), [1, 1, 1])


def test_forgetting_everything_leaves_the_last_task() -> None:
    last, alone = learn_in_turn(PRIOR, TASKS, 1.0)[-1], PRIOR.given(TASKS[-1])
    np.testing.assert_allclose(last.mean, alone.mean)
    np.testing.assert_allclose(last.variance, alone.variance)


def test_a_rate_for_each_task() -> None:
    after = learn_in_turn(PRIOR, TASKS, [0.9, 0.0, 1.0])  # the first has nothing to forget
    np.testing.assert_allclose(after[0].mean, PRIOR.given(TASKS[0]).mean)
    np.testing.assert_allclose(after[1].mean, PRIOR.given(TASKS[0]).given(TASKS[1]).mean)
    np.testing.assert_allclose(after[2].mean, PRIOR.given(TASKS[2]).mean)
