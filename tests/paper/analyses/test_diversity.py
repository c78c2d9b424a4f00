"""Diversity and expertise against loops over the definition."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

from kenyon.errors import ConfigError
from kenyon.experiments.results import Result
from kenyon.paper.analyses import Model, diversity, learners_expertise
from kenyon.paper.analyses.outcomes import saved_diversity, saved_expertise
from tests.paper.analyses.small import apart_model, conv_model, images_of, permuted, plain_head, plain_vector


def test_against_loops() -> None:
    model = conv_model(learners=3)
    found, skill = diversity(model), learners_expertise(model)
    for task in model.tasks:
        x, labels = images_of(model, "test", task)
        p = [
            plain_head(model, model.rows[0], task, plain_vector(model, model.rows[0], k, x)).softmax(-1)
            for k in range(3)
        ]
        cos = euc = 0.0
        for i, j in permutations(range(3), 2):
            for a, b in zip(p[i].tolist(), p[j].tolist(), strict=True):
                cos += sum(u * v for u, v in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
                euc += math.dist(a, b)
        pairs = 6 * len(x)
        assert found.cosine[task] == pytest.approx(1 - cos / pairs, abs=1e-5)
        assert found.euclidean[task] == pytest.approx(euc / pairs, abs=1e-5)
        right = np.array([100 * float((one.argmax(-1) == labels).double().mean()) for one in p])
        np.testing.assert_allclose(skill.accuracy[task], right, atol=1e-4)
        np.testing.assert_allclose(skill.relative[task], right - right.mean(), atol=1e-4)


def test_equal_learners_do_not_differ() -> None:
    model = conv_model(learners=2)
    same = permuted(model, [0, 0])
    np.testing.assert_allclose(diversity(same).cosine, 0, atol=1e-6)
    np.testing.assert_allclose(diversity(same).euclidean, 0, atol=1e-6)
    np.testing.assert_allclose(learners_expertise(same).relative, 0, atol=1e-6)


def test_the_order_of_learners_means_nothing() -> None:
    model = conv_model(learners=3)
    other = permuted(model, [2, 0, 1])
    np.testing.assert_allclose(diversity(other).cosine, diversity(model).cosine, atol=1e-6)
    np.testing.assert_allclose(diversity(other).euclidean, diversity(model).euclidean, atol=1e-6)
    np.testing.assert_allclose(
        learners_expertise(other).relative, learners_expertise(model).relative[:, [2, 0, 1]], atol=1e-4
    )


def test_saved_numbers_are_those_of_the_model(results: Path) -> None:
    for method in ("caf-ewc", "icl-ewc"):
        model = Model.load(results, "digits", method, 1, device="cpu")
        run = Result.load(results / "digits" / method / "result.json").runs[1]
        np.testing.assert_allclose(diversity(model).cosine, saved_diversity(run).cosine, atol=1e-4)
        np.testing.assert_allclose(diversity(model).euclidean, saved_diversity(run).euclidean, atol=1e-4)
        np.testing.assert_allclose(learners_expertise(model).relative, saved_expertise(run).relative, atol=1e-3)
        np.testing.assert_allclose(learners_expertise(model).together, saved_expertise(run).together, atol=1e-3)


def test_one_learner_differs_from_nobody() -> None:
    with pytest.raises(ConfigError, match="several learners"):
        diversity(conv_model(learners=1))
    assert torch.isfinite(torch.from_numpy(diversity(apart_model()).cosine)).all()
