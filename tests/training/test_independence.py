"""A run's numbers do not depend on the runs beside it, whatever becomes of those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kenyon.training import Trainer, Training
from kenyon.utils.threads import cpu_threads
from tests.references import hand_stream, make_trainer
from tests.training.fleets import SHORT, assert_same, digit_streams, method, trained


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "rwalk", "cpr-ewc", "caf-ewc", "ewc-af2", "pnc", "agscl"])
def test_runs_together_equal_runs_alone(name: str) -> None:
    together = trained(name, digit_streams([3, 8]))
    for run, seed in enumerate([3, 8]):
        assert_same(together, run, trained(name, digit_streams([seed])))
    assert not torch.equal(together.theta[0], together.theta[1])


UNEQUAL = ([90, 40], [33, 70], [64, 5])  # training samples of each task, for each run


@pytest.mark.parametrize(
    "name", ["finetune", "ewc", "si", "rwalk", "cpr-ewc", "mas", "caf-ewc", "ewc-af2", "joint", "pnc", "agscl"]
)
def test_runs_of_unequal_sizes_equal_runs_alone(name: str) -> None:
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(UNEQUAL)]
    together = trained(name, streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained(name, [stream], training))


def test_runs_with_unequal_validation_sets_equal_runs_alone() -> None:
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream([40, 30], seed=s, held_out=n) for s, n in enumerate((3, 11, 40))]
    together = trained("ewc", streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained("ewc", [stream], training))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Conv2d(12, 20, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(80, 30),
        nn.Tanh(),
        nn.Dropout(0.5),
    )


@pytest.mark.parametrize("name", ["ewc", "caf-ewc", "ewc-af2", "pnc", "agscl"])
def test_cores_and_runs_beside_it_change_no_bit_of_a_run(name: str) -> None:
    """Whether one core computes or several, and which run is computed when."""
    training = Training(epochs=2, batch=48, rate=5e-3, patience=1)
    streams = [hand_stream([90, 61], seed=seed) for seed in range(3)]
    alone = [trained(name, [stream], training, backbone=convolutional()) for stream in streams]
    for cores in (2, 3):
        with cpu_threads(cores):
            together = trained(name, streams, training, backbone=convolutional())
            lonely = trained(name, streams[:1], training, backbone=convolutional())
        for run, expected in enumerate(alone):
            assert_same(together, run, expected)
        assert_same(lonely, 0, alone[0])


def test_networks_that_pytorch_computes_draw_the_same_alone_and_together() -> None:
    """Dropout2d is not among the layers that are known here."""
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
    streams = [hand_stream([40, 30], seed=seed) for seed in range(2)]
    with cpu_threads(2):
        alone = [trained("ewc", [stream], backbone=backbone) for stream in streams]
        together = trained("ewc", streams, backbone=backbone)
    for run, expected in enumerate(alone):
        assert_same(together, run, expected)


def test_strengths_may_differ_between_runs() -> None:
    streams = digit_streams([0, 1])
    both = make_trainer(
        method("caf-ewc", lambda_sp=torch.tensor([5.0, 500.0]), gamma=torch.tensor([0.0, 1.0])), streams, SHORT
    )
    both.run()
    for run, (lam, gamma) in enumerate([(5.0, 0.0), (500.0, 1.0)]):
        alone = make_trainer(method("caf-ewc", lambda_sp=lam, gamma=gamma), streams[run : run + 1], SHORT)
        alone.run()
        assert_same(both, run, alone)


@pytest.mark.parametrize("name", ["finetune", "caf-ewc", "ewc-af2", "si", "agscl"])
def test_a_run_that_diverges_stops_and_leaves_others_alone(name: str) -> None:
    streams = digit_streams([0, 1, 2])
    poisoned = make_trainer(method(name), streams, SHORT)
    poisoned.theta[1] = torch.inf
    poisoned.run()
    assert poisoned.position.diverged == [None, [0, 0], None]  # in the first epoch of the first task, from 0
    assert poisoned.live == [0, 2]
    clean = trained(name, [streams[0], streams[2]])
    assert_same(poisoned, 0, clean, 0)
    assert_same(poisoned, 2, clean, 1)
    for record in poisoned.position.records:
        assert torch.tensor(record["accuracy"][1]).isnan().all()


def test_a_run_may_diverge_later() -> None:
    streams = digit_streams([0, 1])
    trainer = make_trainer(method("ewc"), streams, replace(SHORT, epochs=3))

    def poison(t: Trainer) -> bool:
        if (t.position.phase, t.position.epoch) == (1, 1):
            t.theta[0, 5] = torch.nan
        return False

    trainer.run(poison)
    assert trainer.position.diverged == [[1, 1], None]  # in the second epoch of the second task
    assert_same(trainer, 1, trained("ewc", streams[1:], replace(SHORT, epochs=3)))
    assert torch.isfinite(torch.tensor(trainer.position.records[0]["accuracy"])).all()


def test_when_all_runs_diverge_the_training_ends() -> None:
    trainer = make_trainer(method("finetune"), digit_streams([0, 1]), SHORT)
    trainer.theta.fill_(torch.nan)
    position = trainer.run()
    assert position.diverged == [[0, 0], [0, 0]]
    assert position.records == []


@pytest.mark.parametrize("name", ["ewc", "ewc-af2", "agscl"])
def test_runs_of_unequal_sizes_equal_runs_alone_with_momentum(name: str) -> None:
    """Where a run has no batch any more, its momentum has to wait."""
    steps: dict[str, Any] = {"optimiser": "sgd", "schedule": "step", "drop_epoch": 2, "validation": 0.0}
    sgd = Training(epochs=3, batch=16, rate=5e-3, carry=True, **steps)
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(([90, 40], [33, 70], [64, 5]))]
    together = trained(name, streams, sgd)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained(name, [stream], sgd))
