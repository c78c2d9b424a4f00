"""Lines through a loss known in closed form, and through that of networks computed one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.paper.analyses import FlatnessSettings, Model, flatness
from kenyon.paper.analyses.flatness import along_lines, random_direction
from kenyon.random import Purpose, key
from tests.paper.analyses.small import apart_model, conv_model, images_of, per_task_model, permuted, plain_logits


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_a_quadratic(at_once: int) -> None:
    """L(x) = 1/2 x'Hx + 1 around 0: along a unit vector d it is 1 + a^2 d'Hd / 2, and it rises by r^2 d'Hd / 2."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(5, 5, generator=g, dtype=torch.float64)
    hessian = root @ root.T
    lines = F.normalize(torch.randn(3, 5, generator=g, dtype=torch.float64), dim=1)
    asked: list[int] = []

    def loss(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return 1 + 0.5 * ((rows @ hessian) * rows).sum(1)

    offsets = torch.linspace(-2, 2, 5)
    found = along_lines(loss, torch.zeros(5, dtype=torch.float64), lambda d: lines[d], 3, offsets, at_once)
    curvature = torch.einsum("di,ij,dj->d", lines, hessian, lines)
    expected = 1 + 0.5 * curvature.unsqueeze(1) * offsets.double().square()
    np.testing.assert_allclose(found.losses, expected, rtol=1e-12)
    assert found.loss == pytest.approx(1)
    assert found.sharpness == pytest.approx(float((2 * curvature).mean()))
    assert found.worst == pytest.approx(float((2 * curvature).max()))
    assert max(asked) <= at_once and sum(asked) == 15


def by_hand(model: Model, rows: Tensor, part: str) -> float:
    """The mean over tasks of the cross-entropy of a whole model (M, P), sample by sample of all."""
    losses = []
    for task in model.tasks:
        x, labels = images_of(model, part, task)
        said = torch.stack([plain_logits(model, row, x, task).softmax(-1) for row in rows[model.rows_for(task)]])
        losses.append(F.nll_loss(said.mean(0).log(), labels))
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("make", [conv_model, apart_model, per_task_model])
@pytest.mark.parametrize("scale", ["radius", "filter"])
def test_of_networks(make, scale: str) -> None:  # type: ignore[no-untyped-def]
    model = make()
    s = FlatnessSettings(directions=2, steps=3, scale=scale, reach=0.7, part="test")  # type: ignore[arg-type]
    found = flatness(model, s)
    assert found.loss == pytest.approx(by_hand(model, model.rows, "test"), abs=1e-5)
    for d in range(2):
        line = random_direction(model, scale, key(0, Purpose.ANALYSIS, model.seed, d))
        for place, offset in enumerate((-0.7, 0.0, 0.7)):
            expected = by_hand(model, model.rows + offset * line, "test")
            assert found.losses[d, place] == pytest.approx(expected, abs=1e-5)


def test_directions() -> None:
    model = conv_model(learners=2)
    unit, long = (random_direction(model, scale, 7) for scale in ("radius", "norm"))
    assert float(unit.norm()) == pytest.approx(1, abs=1e-5)
    assert float(long.norm()) == pytest.approx(float((model.rows * model.moved).norm()), rel=1e-5)
    torch.testing.assert_close(long / long.norm(), unit)
    # A class that the first task does not have is never moved.
    assert torch.equal(model.net.layout.view(unit, "head.weight")[0, 0, 2], torch.zeros(5))
    assert bool((unit != 0)[model.moved].all())
    assert not torch.equal(unit, random_direction(model, "radius", 8))


def test_filters_keep_their_length_and_biases_stay() -> None:
    model = conv_model(learners=2)
    line, view = random_direction(model, "filter", 3), model.net.layout.view
    for name in ("conv1.weight", "conv2.weight", "dense1.weight", "head.weight"):
        moved, own = view(line, name)[0].flatten(2), view(model.rows, name)[0].flatten(2)
        lengths = (model.net.layout.view(model.moved, name)[0].flatten(2) * own).norm(dim=2)
        torch.testing.assert_close(moved.norm(dim=2), lengths)
    for name in ("conv1.bias", "dense1.bias", "head.bias"):
        assert not view(line, name).any()


def test_filter_lines_do_not_see_the_scale_of_a_relu_network() -> None:
    """Weights and bias of a layer twice as large, those of the next half: the same function, the same lines."""
    model = conv_model(learners=2)
    rows = model.rows.clone()
    for name, factor in (("conv1.weight", 2.0), ("conv1.bias", 2.0), ("conv2.weight", 0.5)):
        model.net.layout.view(rows, name).mul_(factor)
    other = model.with_rows(rows)
    s = FlatnessSettings(directions=2, steps=5, scale="filter")
    np.testing.assert_allclose(flatness(other, s).losses, flatness(model, s).losses, rtol=1e-4)


def test_the_order_of_learners_means_nothing_to_the_loss() -> None:
    model = conv_model(learners=3)
    s = FlatnessSettings(directions=1, steps=3)
    assert flatness(permuted(model, [1, 2, 0]), s).loss == pytest.approx(flatness(model, s).loss, abs=1e-6)


def test_of_digits_and_of_fewer_samples(results: Path) -> None:
    model = Model.load(results, "digits", "caf-ewc", device="cpu")
    whole = flatness(model, FlatnessSettings(directions=2, steps=3, samples=0))
    assert whole.loss == pytest.approx(by_hand(model, model.rows, "train"), abs=1e-4)
    few = flatness(model, FlatnessSettings(directions=2, steps=3, samples=10))
    assert few.loss != whole.loss and whole.sharpness > 0


def test_what_cannot_be() -> None:
    for wrong in ({"steps": 4}, {"directions": 0}, {"scale": "cube"}, {"part": "validation"}, {"reach": -1.0}):
        with pytest.raises(ConfigError):
            FlatnessSettings(**wrong)  # type: ignore[arg-type]
