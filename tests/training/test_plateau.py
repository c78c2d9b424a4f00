"""When the rate falls, which weights are kept, and what every task begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.training import Trainer, Training
from kenyon.training.regime import Plateau
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised
from tests.training.fleets import SHORT, digit_streams, method


def reference_plateau(
    losses: Sequence[float], rate: float, patience: int, drop: float
) -> list[tuple[float, bool, int]]:
    """(rate, new optimiser, epoch of the best weights) after each epoch."""
    best, where, waited, out = float("inf"), -1, 0, []
    for epoch, loss in enumerate(losses):
        restarted = False
        if loss < best:
            best, where, waited = loss, epoch, 0
        else:
            waited += 1
            if waited == patience:
                rate, waited, restarted = rate / drop, 0, True
        out.append((rate, restarted, where))
    return out


def test_without_a_better_epoch_the_weights_are_those_that_the_task_began_with() -> None:
    plateau = Plateau(Training(epochs=8, batch=64, rate=0.01, patience=2, drop=4.0), torch.zeros(2, 3))
    began, moved, rate = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.full((2, 3), 9.0), torch.ones(2)
    plateau.begin(began)
    plateau.follow(moved, torch.tensor([torch.inf, 0.5]), rate)  # only the second run has a loss that is lower
    plateau.finish(moved)
    assert moved.tolist() == [[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]


def test_no_run_settles_before_its_rate_has_fallen_once() -> None:
    """Steps of 1 from a best of 0, patience 3, drop 101: later rates could still change 5 * 3 / 100 * 1 = 0.15 at the
    most. After the third step the rate falls; at the next fall the run is settled, 6 above its best.
    """
    theta, rate = torch.zeros(1, 2), torch.ones(1)
    plateau = Plateau(Training(epochs=9, batch=64, rate=1.0, patience=3, drop=101.0), theta)
    for _ in range(2):  # and so in every task
        plateau.begin(theta)
        settled = [
            (plateau.follow(theta, torch.tensor([loss]), rate).item(), plateau.settled.item())
            for loss in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
        ]
        assert settled == [(False, 0), (False, 0), (False, 0), (True, 0), (False, 0), (False, 0), (True, 1)]
    assert rate.item() == pytest.approx(101.0**-4)


def test_plateaus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs with losses of our making, patience 2, drop 4."""
    losses = torch.tensor(
        [
            [5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.4, 0.3],  # always better: never a drop
            [5.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.5, 3.9],  # 6, 5 not better -> drop; 4 better; 4, 4 not -> drop; 3.9
            [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.5],  # drops after epochs 3, 5 and 7 (counted from 1)
        ]
    )
    training = Training(epochs=8, batch=64, rate=0.008, patience=2, drop=4.0)
    trainer = make_trainer(method("finetune"), [hand_stream([64], seed=s) for s in range(3)], training)
    trainer.schedule.never_settle()  # as such losses would
    by_hand = [reference_plateau(row.tolist(), 0.008, 2, 4.0) for row in losses]
    assert [r for r, _, _ in by_hand[1]] == pytest.approx([8e-3, 8e-3, 2e-3, 2e-3, 2e-3, 5e-4, 5e-4, 5e-4])
    assert [r for r, _, _ in by_hand[2]] == pytest.approx([8e-3, 8e-3, 2e-3, 2e-3, 5e-4, 5e-4, 1.25e-4, 1.25e-4])

    def made_up(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return losses[:, trainer.position.epoch] * weight.sum(-1)

    history: list[Tensor] = []
    validate = trainer.validate

    def patched() -> None:
        history.append(trainer.theta.clone())
        with monkeypatch.context() as patch:
            patch.setattr("kenyon.methods.base.weighted_cross_entropy", made_up)
            validate()

    trainer.validate = patched  # type: ignore[method-assign]

    def watch(t: Trainer) -> bool:
        epoch = t.position.epoch - 1
        if t.position.phase == 0:
            for run in range(3):
                rate, restarted, where = by_hand[run][epoch]
                assert float(t.rate[run]) == pytest.approx(rate)
                assert (float(t.optimizer.steps[run]) == 0) == restarted
                assert bool(t.optimizer.first[run].any()) != restarted
                assert torch.equal(t.schedule.best[run], history[where][run])
        return False

    trainer.run(watch)
    assert torch.equal(trainer.theta, torch.stack([history[7][0], history[7][1], history[7][2]]))


def test_best_weights_are_restored() -> None:
    training = Training(epochs=6, batch=16, rate=0.03, patience=5)
    stream = hand_stream([40], seed=2, held_out=20, noise=500)  # too hard: validation gets worse again
    trainer = make_trainer(method("finetune"), [stream], training)
    hand, losses, rows = Hand(DigitsLearner(4), 1, (2,)), [], []

    def watch(t: Trainer) -> bool:
        if t.position.phase == 0:
            split = stream.tasks[0].validation
            losses.append(
                float(F.cross_entropy(hand.logits(t.theta[0].double(), normalised(split, stream))[0], split.labels))
            )
            rows.append(t.theta[0].clone())
            assert float(t.schedule.best_loss[0]) == pytest.approx(min(losses), rel=1e-4)
        return False

    trainer.run(watch)
    best = losses.index(min(losses))
    assert 0 < best < 5
    assert torch.equal(trainer.theta[0], rows[best])


def test_every_task_begins_with_a_new_optimizer_and_rate() -> None:
    streams, starts = digit_streams([0]), []
    trainer = make_trainer(method("ewc"), streams, replace(SHORT, epochs=4))
    begin = trainer.start_phase

    def begun() -> None:
        begin()
        state = [float(t.abs().sum()) for t in trainer.optimizer.tensors().values()]
        starts.append(
            (float(trainer.rate[0]), state, float(trainer.schedule.best_loss[0]), float(trainer.schedule.waited[0]))
        )

    trainer.start_phase = begun  # type: ignore[method-assign]
    trainer.run()
    assert starts == [(pytest.approx(5e-3), [0.0] * 3, float("inf"), 0.0)] * 2
