"""A run's numbers do not depend on the runs beside it, whatever becomes of those."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kenyon.train import Trainer, Training
from tests.references import hand_stream, make_trainer
from tests.train.fleets import SHORT, assert_same, digit_streams, method, trained


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "caf-ewc", "ewc-af2"])
def test_runs_together_equal_runs_alone(name: str) -> None:
    together = trained(name, digit_streams([3, 8]))
    for run, seed in enumerate([3, 8]):
        assert_same(together, run, trained(name, digit_streams([seed])))
    assert not torch.equal(together.theta[0], together.theta[1])


UNEQUAL = ([90, 40], [33, 70], [64, 5])  # training samples of each task, for each run


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "mas", "caf-ewc", "ewc-af2", "joint"])
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


@pytest.mark.parametrize("name", ["finetune", "caf-ewc", "ewc-af2", "si"])
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
