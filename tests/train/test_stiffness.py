"""What is said of protection that is too hard for the learning rate, against springs that swing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kenyon.forces import Decay, Pull
from kenyon.importance import fisher_published
from kenyon.methods import Method
from kenyon.nets import Net
from kenyon.penalties import StabilityProtection
from kenyon.train import Trainer, Training
from kenyon.train.adam import Adam
from kenyon.train.sgd import Sgd
from kenyon.train.stiffness import stiffness, told_of_stiffness
from tests.references import hand_stream


def spring(curvature: float) -> Pull:
    return Pull(torch.tensor([curvature]), torch.ones(1, 1), torch.zeros(1, 1))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.98, 1.02])
def test_sgd_follows_a_spring_up_to_its_limit(momentum: float, share: float) -> None:
    sgd, theta, rate = Sgd(torch.Size((1, 1)), torch.device("cpu"), momentum), torch.ones(1, 1), torch.tensor([0.01])
    pull = spring(share * sgd.follows / 0.01)
    for _ in range(3000):
        sgd.step(theta, torch.zeros(1, 1), rate, torch.ones(1), [pull])
    assert abs(float(theta)) < 1e-6 if share < 1 else not abs(float(theta)) < 1e6
    assert bool(told_of_stiffness(0.01 * stiffness([pull], 0), sgd.follows)) == (share > 1)


def test_adam_follows_every_spring() -> None:
    assert not told_of_stiffness(1e30, Adam(torch.Size((1, 1)), torch.device("cpu")).follows)


def test_the_hardest_weight_of_a_row() -> None:
    weights = torch.tensor([[1.0, 5.0, 2.0], [9.0, 1.0, 1.0]])
    one = Pull(torch.tensor([2.0, 3.0]), weights, torch.zeros(2, 3))
    other = Pull(torch.tensor([10.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 2))
    decay = Decay(torch.ones(2, 1), torch.zeros(3, dtype=torch.int8))
    assert stiffness([one, decay], 0) == 10 and stiffness([one], 1) == 27
    assert stiffness([one, other], 0) == 12  # 2 * 1 + 10 * 1 at the first weight
    assert stiffness([other, one], 1) == 28
    assert stiffness([decay], 0) == stiffness([], 0) == 0


def trained(strength: float, rate: float, optimiser: str) -> Trainer:
    streams = [hand_stream([47, 20], seed=seed) for seed in range(2)]
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU()), (1, 8, 8), streams[0].class_counts)
    steps: dict[str, Any] = {
        "optimiser": optimiser,
        "momentum": 0.9,
        "schedule": "step",
        "drop_epoch": 90,
        "validation": 0.0,
    }
    training = Training(epochs=20, batch=8, rate=rate, **steps)
    trainer = Trainer(net, streams, Method(fisher_published(), (StabilityProtection(strength),)), training)
    trainer.run()
    return trainer


def test_a_run_that_protection_shakes_apart_says_so() -> None:
    shaken = trained(1e11, 0.01, "sgd")
    assert all(place is not None and place[0] == 1 for place in shaken.position.diverged)  # in the second task
    assert "x importance was" in shaken.why_diverged(0) and "3.8 is the most" in shaken.why_diverged(1)
    assert shaken.why_diverged(0) != shaken.why_diverged(1)
    shaken.position.phase += 1  # as beside a run that goes on: what held the weights is gone
    assert not shaken.why_diverged(0)


def test_other_reasons_are_not_called_that() -> None:
    too_fast = trained(0.0, 1e30, "sgd")
    assert not too_fast.live and not too_fast.why_diverged(0)
    assert not trained(1e11, 1e30, "adam").why_diverged(0)
