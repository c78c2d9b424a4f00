"""Invalid arguments are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kenyon.errors import ConfigError
from kenyon.paper import theory as t

OLD, PRIOR, TASK = t.Gaussian([1, 2], [1, 1]), t.Gaussian([0, 0], [1, 2]), t.Evidence([3, 3], [1, 1])
SPACE, FEW = t.Space.shared(10, 2), t.Gaussian(0, 1)

BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: t.Gaussian(0, 0), "variance must be larger than 0"),
    (lambda: t.Gaussian(0, [-1.0, 1]), r"variance must be larger than 0, not -1"),
    (lambda: t.Gaussian(np.nan, 1), "mean must be finite"),
    (lambda: t.Gaussian([0, 1, 2], [1, 1]), r"mean \(3,\) and variance \(2,\)"),
    (lambda: t.Gaussian("wide", 1), "mean must be a number"),
    (lambda: t.Evidence(0, -0.5), "fisher must be 0 or larger, not -0.5"),
    (lambda: t.Evidence(0, 1, np.inf), "log_peak must be finite"),
    (lambda: t.Evidence.of_samples([], 1), "samples must be"),
    (lambda: t.Evidence.of_samples([1.0], 0), "noise must be larger than 0"),
    (lambda: t.forget(OLD, PRIOR, 1.5), r"beta must lie between 0 .* and 1 .*, not 1.5"),
    (lambda: t.forget(OLD, PRIOR, [0.5, -0.1]), "beta must lie .* not -0.1"),
    (lambda: t.forget(OLD, FEW, 0.5), "old has 2 parameters and prior 1"),
    (lambda: FEW.given(TASK), "The task has 2 parameters and the belief 1"),
    (lambda: t.log_predictive(OLD, PRIOR, t.Evidence(1, 1), 0.5), "The task has 1 parameters"),
    (lambda: t.best_rate(OLD, FEW, TASK), r"prior has shape \(1,\)"),
    (lambda: t.best_rate(t.forget(OLD, PRIOR, [0.1, 0.2]).belief, PRIOR, TASK), r"old has shape \(2, 2\)"),
    (lambda: t.learn_in_turn(PRIOR, [TASK, TASK], [0.1]), r"one a task \(2\)"),
    (lambda: t.memory_weights(0, 0.5), "tasks must be a whole number, 1 or larger, not 0"),
    (lambda: t.lambdas_af1(-1), "beta must lie"),
    (lambda: t.lambdas_af2([0.5, 1.0]), "beta must be below 1 for AF-2"),
    (lambda: t.Scales(sp=0), "the scale of lambda_SP must be larger than 0"),
    (lambda: t.forgetting_af1(0, 0), "both 0"),
    (lambda: t.forgetting_af1(-1, 0), "lambda_sp must be 0 or larger"),
    (lambda: t.forgetting_af1([1, 2], [1, 2, 3]), "must have the same shape"),
    (lambda: t.forgetting_af2(0, 1), "lambda_SP must be larger than 0 for AF-2"),
    (lambda: t.learner_lambdas(1, [0.5, 0.6]), "shares must sum to 1"),
    (lambda: t.Space((), 3), "K, the number of learners, must be a whole number, 1 or larger, not 0"),
    (lambda: t.Space.shared(3, 0), "K, the number of learners"),
    (lambda: t.Space((4.0, 1.0), 3), "d_i = 4 is larger than d = 3"),
    (lambda: t.Space((2.0,), 3), "With K = 1"),
    (lambda: t.Space((-2.0, 1.0), 3), "d_i must be larger than 0"),
    (lambda: t.cover_c1([], SPACE, 0.1), "old_samples must name"),
    (lambda: t.cover_c1([10, 0], SPACE, 0.1), "old_samples must be a whole number, 1 or larger, not 0"),
    (lambda: t.cover_c2(5, SPACE, 0.1), "at most the number of samples, 5, not 10"),
    (lambda: t.single_cover(100, 0, 0.1), "must be above 0 and at most the number of samples, 100, not 0"),
    (lambda: t.single_cover(100, -0.5, 0.1), "must be above 0 .* not -0.5"),
    (lambda: t.cover_c2(100, SPACE, 1.0), "delta must lie between 0 and 1"),
    (lambda: t.cover_c2(100, SPACE, 0.1, "proved"), "no form of a cover called 'proved'"),
    (lambda: t.balls(10, 1, 10**6), "log_balls"),
    (lambda: t.r2(-1, 5, 100, 0.1), "ratio .* must be 0 or larger"),
    (lambda: t.r2(1, 0, 100, 0.1), "parameters must be a whole number"),
    (lambda: t.r2(1, 5, 1, 0.1), "samples must be a whole number, 2 or larger, not 1"),
    (lambda: t.norm_cover(1, 5, 100, 0.1, form="assembled"), "dimension"),
    (lambda: t.norm_cover(1, 5, 100, 0.1, form="other"), "norm cover called 'other'"),
    (lambda: t.plasticity_bound(-0.1, [0.1], t.Cover({})), "flatness_old must be 0 or larger"),
    (lambda: t.stability_bound(0.1, [2.1], t.Cover({})), "divergences must have a number from 0 to 2"),
    (lambda: t.stability_bound(0.1, [], t.Cover({})), "divergences"),
    (lambda: t.quadratic_flatness(1, -1), "radius must be 0 or larger"),
    (lambda: t.h_divergence([[0, 2]], [[0, 1]]), "first must be an array"),
    (lambda: t.h_divergence([[0, 1]], [[0], [1]]), "same hypotheses, not of 1 and 2"),
    (lambda: t.fig3b_data(sigma=0), "sigma must be larger than 0"),
    (lambda: t.fig3b_data(betas=[2]), "betas must lie"),
    (lambda: t.fig3b_data(betas=[]), "betas must be a list"),
    (lambda: t.bounds_data(tasks=1), "tasks must be a whole number, 2 or larger"),
    (lambda: t.bounds_data(shown_learners=[0]), "shown_learners"),
]


@pytest.mark.parametrize(("make", "words"), BAD)
def test_the_error_names_it(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
