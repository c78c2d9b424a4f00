"""Discriminators against one trained alone, and on clouds of known overlap."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.paper.analyses import DiscrepancySettings, discrepancy
from kenyon.paper.analyses.discrepancy import contests, discriminate, head_inputs, task_vectors
from tests.paper.analyses.small import apart_model, conv_model, images_of, per_task_model, permuted, plain_vector

STEPS = {"steps": 40, "rate": 0.05}


def clouds(middles: list[list[float]], each: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw normal clouds around points, one per task."""
    g = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.randn(each, len(m), generator=g) + torch.tensor(m) for m in middles])
    return x.double(), torch.arange(len(middles)).repeat_interleave(each)


def one_alone(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], side: Tensor) -> tuple[float, float]:
    """Train one discriminator by PyTorch's layer, loss and optimizer, with the mean loss of each side."""
    middle, spread = train[0].mean(0), train[0].std(0)
    layer = nn.Linear(train[0].shape[1], 1).double()
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(layer.parameters(), lr=STEPS["rate"])

    def loss(data: tuple[Tensor, Tensor], *, wrong: bool = False) -> Tensor:
        halves = []
        for sign, target in ((1, 1.0), (-1, 0.0)):
            logits = layer((data[0][side[data[1]] == sign] - middle) / spread).squeeze(1)
            said = torch.full_like(logits, target)
            if wrong:
                halves.append(((logits > 0).float() - said).abs().mean())
            else:
                halves.append(F.binary_cross_entropy_with_logits(logits, said))
        return sum(halves) / 2

    for _ in range(int(STEPS["steps"])):
        optimizer.zero_grad()
        loss(train).backward()
        optimizer.step()
    with torch.no_grad():
        return float(loss(test)), 100 * float(loss(test, wrong=True))


@pytest.mark.parametrize("against", ["pairs", "rest"])
def test_all_at_once_are_as_each_alone(against: str) -> None:
    middles = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.5, -2.0, 0.0]]
    train, test = clouds(middles, 30), clouds(middles, 20, seed=1)
    train = (train[0][:80], train[1][:80])  # sides of unequal sizes
    sides = contests(3, against)
    error, wrong = discriminate(train, test, sides, **STEPS)
    for d, side in enumerate(sides):
        alone = one_alone(train, test, side)
        assert (float(error[d]), float(wrong[d])) == pytest.approx(alone, abs=1e-6)


def test_contests() -> None:
    assert contests(3).tolist() == [[1, -1, 0], [1, 0, -1], [0, 1, -1]]
    assert contests(3, "rest").tolist() == [[1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    assert len(contests(20)) == math.comb(20, 2)


def test_clouds_that_are_apart_and_clouds_that_are_one() -> None:
    middles = [[0.0] * 4, [9.0] * 4, [9.0] * 4]
    error, wrong = discriminate(clouds(middles, 500), clouds(middles, 500, seed=1), contests(3), steps=200, rate=0.05)
    apart, apart_too, same = error.tolist()
    assert apart < 0.01 and apart_too < 0.01
    assert same == pytest.approx(math.log(2), abs=0.02)
    assert wrong[0] == 0 and wrong[2] == pytest.approx(50, abs=5)


def test_without_any_difference_it_is_chance() -> None:
    x = torch.ones(20, 3)
    task = torch.arange(20) % 2
    error, wrong = discriminate((x, task), (x, task), contests(2), **STEPS)
    assert float(error) == pytest.approx(math.log(2), abs=1e-6) and float(wrong) == pytest.approx(50)


def test_units_and_the_order_of_sides_mean_nothing() -> None:
    middles = [[0.0, 0.0], [1.0, 1.0]]
    train, test = clouds(middles, 50), clouds(middles, 50, seed=1)
    plain = discriminate(train, test, contests(2), **STEPS)
    scale, shift = torch.tensor([1e3, 0.01]), torch.tensor([-5.0, 2.0])
    moved = [(x * scale + shift, task) for x, task in (train, test)]
    for other in (
        discriminate(moved[0], moved[1], contests(2), **STEPS),
        discriminate(train, test, -contests(2), **STEPS),
    ):
        torch.testing.assert_close(other, plain, rtol=1e-6, atol=1e-6)


def test_features_are_the_sum_of_the_learners() -> None:
    model = conv_model(learners=3, gate=True)
    vectors, task = task_vectors(model, "train", 0)
    features = head_inputs(vectors)
    for t in model.tasks:
        x, _ = images_of(model, "train", t)
        each = torch.stack([plain_vector(model, model.rows[0], k, x) for k in range(3)])
        torch.testing.assert_close(vectors[0, :, task == t], each, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(features[task == t], each.sum(0), rtol=1e-4, atol=1e-5)
    few_vectors, few_tasks = task_vectors(model, "train", 4)
    assert few_tasks.tolist() == [0] * 4 + [1] * 4
    few, second = head_inputs(few_vectors), features[task == 1]
    torch.testing.assert_close(few[4:], second[torch.arange(4) * len(second) // 4], rtol=1e-4, atol=1e-5)


def test_of_models() -> None:
    model = conv_model(learners=3)
    found = discrepancy(model, DiscrepancySettings(steps=20))
    assert found.error.shape == (1,) and found.mean_error == pytest.approx(found.error.mean())
    again = discrepancy(permuted(model, [1, 2, 0]), DiscrepancySettings(steps=20))
    assert again.mean_error == pytest.approx(found.mean_error, abs=1e-4)
    (train, task), (test, test_task) = (task_vectors(model, part, 0) for part in ("train", "test"))
    own = [
        discriminate((train[0, k], task), (test[0, k], test_task), contests(2), steps=20, rate=0.01) for k in range(3)
    ]
    assert found.own_error == pytest.approx(sum(float(error.mean()) for error, _ in own) / 3)
    single = discrepancy(conv_model(learners=1), DiscrepancySettings(steps=20))
    assert single.own_error == pytest.approx(single.mean_error)
    apart = apart_model()
    assert head_inputs(task_vectors(apart, "test", 0)[0]).shape[1] == 3 * apart.net.features  # side by side
    assert len(list(combinations(range(2), 2))) == len(discrepancy(apart).sides)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="features that tasks share"):
        discrepancy(per_task_model())
    with pytest.raises(ConfigError, match="pairs or rest"):
        DiscrepancySettings(against="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="step"):
        DiscrepancySettings(steps=0)
