"""Messages about protection that is too strong for the learning rate, against oscillating springs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kenyon.backends.optimizers import Adam, Sgd, bound, stiffness, why_overshot
from kenyon.backends.triton.updates import QuadraticPull, WeightDecay
from kenyon.methods import Method
from kenyon.methods.importance import fisher_published
from kenyon.methods.penalties.weights import StabilityProtection
from kenyon.models import Net
from kenyon.training import Trainer, Training
from kenyon.training.trainer import Watcher
from tests.references import hand_stream, make_trainer
from tests.training.fleets import method

SGD = Training(epochs=20, batch=8, rate=0.01, optimiser="sgd", schedule="step", drop_epoch=90, validation=0.0)


def spring(curvature: float) -> QuadraticPull:
    return QuadraticPull(torch.tensor([curvature]), torch.ones(1, 1), torch.zeros(1, 1))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("share", [0.98, 1.02])
def test_sgd_follows_a_spring_up_to_its_limit(momentum: float, share: float) -> None:
    sgd, theta, rate = Sgd(torch.Size((1, 1)), torch.device("cpu"), momentum), torch.ones(1, 1), torch.tensor([0.01])
    pull = spring(share * sgd.follows / 0.01)
    for _ in range(3000):
        sgd.step(theta, torch.zeros(1, 1), rate, torch.ones(1), [pull])
    assert abs(float(theta)) < 1e-6 if share < 1 else not abs(float(theta)) < 1e6
    assert bool(why_overshot([pull], pull.weight, {0: 0.01}, sgd.follows)) == (share > 1)


def test_adam_follows_every_spring() -> None:
    pull, limit = spring(1e30), Adam(torch.Size((1, 1)), torch.device("cpu")).follows
    assert not why_overshot([pull], pull.weight, {0: 1.0}, limit)


def test_the_hardest_weight_of_a_row() -> None:
    weights = torch.tensor([[1.0, 5.0, 2.0], [9.0, 1.0, 1.0]])
    one = QuadraticPull(torch.tensor([2.0, 3.0]), weights, torch.zeros(2, 3))
    other = QuadraticPull(torch.tensor([10.0, 1.0]), torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 2))
    decay = WeightDecay(torch.ones(2, 1), torch.zeros(3, dtype=torch.int8))
    assert stiffness([one, decay], 0) == 10 and stiffness([one], 1) == 27
    assert stiffness([one, other], 0) == 12  # 2 * 1 + 10 * 1 at the first weight
    assert stiffness([other, one], 1) == 28
    assert stiffness([decay], 0) == stiffness([], 0) == 0


def trained(strength: float, rate: float, optimiser: str, watch: Watcher | None = None, **regime: Any) -> Trainer:
    streams = [hand_stream([47, 20], seed=seed) for seed in range(2)]
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU()), (1, 8, 8), streams[0].class_counts)
    steps: dict[str, Any] = {
        "optimiser": optimiser,
        "momentum": 0.9,
        "schedule": "step",
        "drop_epoch": 90,
        "validation": 0.0,
    }
    training = Training(epochs=20, batch=8, rate=rate, **steps, **regime)
    trainer = Trainer(net, streams, Method(fisher_published(), (StabilityProtection(strength),)), training)
    trainer.run(watch)
    return trainer


def test_a_run_that_protection_shakes_apart_says_so() -> None:
    shaken = trained(1e11, 0.01, "sgd")
    assert all(place is not None and place[0] == 1 for place in shaken.position.diverged)  # in the second task
    assert "x importance was" in shaken.why_diverged(0) and "3.8 is the most" in shaken.why_diverged(1)
    assert shaken.why_diverged(0) != shaken.why_diverged(1)
    shaken.position.phase += 1  # as if another run continued: the penalty that held the weights is gone
    assert not shaken.why_diverged(0)


def test_other_reasons_are_not_called_that() -> None:
    too_fast = trained(0.0, 1e30, "sgd")
    assert not too_fast.live and not too_fast.why_diverged(0)
    assert not trained(1e11, 1e30, "adam").why_diverged(0)


def test_importance_is_lowered_to_what_steps_can_follow() -> None:
    """By hand: half of 3.8 is 1.9, so that at a rate of 0.1 and strengths of 2 and 0.5 importances up to 9.5 and 38
    are as they were.
    """
    importance = torch.tensor([[1.0, 9.4, 9.6, 1e9], [0.0, 9.6, 37.0, 39.0]])
    other = QuadraticPull(torch.ones(2), torch.full((2, 4), 1e9), torch.zeros(2, 4))
    own = QuadraticPull(torch.tensor([2.0, 0.5]), importance, torch.zeros(2, 4))
    bound(importance, [other, own], rate=0.1, limit=3.8)
    torch.testing.assert_close(importance, torch.tensor([[1.0, 9.4, 9.5, 9.5], [0.0, 9.6, 37.0, 38.0]]))
    assert (other.weight == 1e9).all()  # another pull's
    assert 0.1 * stiffness([own], 0) == pytest.approx(1.9) == 0.1 * stiffness([own], 1)


def test_nothing_is_too_important_for_adam_or_without_strength() -> None:
    importance = torch.tensor([[1e30], [2.0]])
    pull = QuadraticPull(torch.tensor([1e6, 0.0]), importance, torch.zeros(2, 1))
    bound(importance, [pull], 0.1, Adam(torch.Size((1, 1)), torch.device("cpu")).follows)
    assert importance.tolist() == [[pytest.approx(1e30)], [2.0]]
    bound(importance, [pull], 0.1, 3.8)
    assert importance[1].item() == 2.0


def test_bounded_protection_shakes_nothing_apart() -> None:
    """The run above, whose hardest weights are held just so hard in the second task, ends with numbers."""
    hardest = []

    def watch(now: Trainer) -> bool:
        if now.position.phase == 1 and now.position.epoch:
            forces = now.penalties.forces(now.gradient)
            hardest.extend(0.01 * stiffness(forces, run) for run in range(2))
        return False

    held = trained(1e11, 0.01, "sgd", watch, bounded=True)
    assert held.live == [0, 1] and torch.isfinite(held.theta).all()
    assert len(hardest) == 2 * 20 and hardest == pytest.approx([1.9] * 40)


def test_bounded_protection_is_as_it_was_where_steps_follow_anyway() -> None:
    usual, bounded = (trained(1e3, 0.01, "sgd", bounded=value) for value in (False, True))
    assert usual.live == bounded.live == [0, 1]
    assert float(usual.importance.max()) > 0
    assert all(map(torch.equal, usual.tensors().values(), bounded.tensors().values()))


def test_why_goes_by_the_rate_of_now_and_by_every_learner_of_a_run() -> None:
    streams = [hand_stream([47, 20], seed=seed) for seed in range(2)]
    trainer = make_trainer(method("icl-ewc", lambda_sp=1.0), streams, SGD)
    trainer.position.phase = 1
    trainer.enter_phase()
    trainer.rate.fill_(0.001)
    trainer.importance.zero_()
    trainer.importance[-1, 3] = 7000.0  # the last learner of the second run
    trainer.position.diverged = [[1, 0], [1, 0]]
    assert not trainer.why_diverged(0) and "was 7," in trainer.why_diverged(1)


def test_bounding_is_advised_only_where_it_helps() -> None:
    """AF-2 pulls with importances of another network, which nothing bounds."""
    trainer = make_trainer(method("ewc-af2", lambda_sp=1.0, lambda_af=1e9), [hand_stream([47, 20])], SGD)
    trainer.run()
    assert trainer.position.diverged != [None]
    assert "so hard that steps overshot" in trainer.why_diverged(0) and "bounded" not in trainer.why_diverged(0)
    assert "bounded=true" in trained(1e11, 0.01, "sgd").why_diverged(0)


def test_what_the_last_update_breaks_is_seen_without_validation() -> None:
    """In the task that it happens in, not in the next."""
    regime = replace(SGD, epochs=1, batch=64, rate=1e38)
    trainer = make_trainer(method("finetune"), [hand_stream([40, 30])], regime)
    trainer.run()
    assert trainer.position.diverged == [[0, 0]] and not trainer.position.records
