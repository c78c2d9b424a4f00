"""Independent learners: networks that share a run's tasks and nothing else, tested by their mean prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.checkpoint import load_state, save_state
from kenyon.training.evaluation import member_rows, member_seed
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised
from tests.training.fleets import SHORT, assert_same, digit_streams, method, trained
from tests.training.test_independence import convolutional


@pytest.mark.parametrize("kind", ["ewc", "mas"])
def test_every_member_is_a_network_that_learned_alone(kind: str) -> None:
    """To the last bit: weights, importance and best weights. The first is the network of the run's own seed."""
    streams = digit_streams([3, 8])
    icl = trained(f"icl-{kind}", streams)
    assert icl.theta.shape[0] == 6 and icl.fleet.seeds[0] == 3 and icl.fleet.seeds[3] == 8
    for row in range(6):
        run, member = divmod(row, 3)
        alone = trained(kind, [replace(streams[run], seed=member_seed(streams[run].seed, member))])
        for name, tensor in alone.tensors().items():
            assert torch.equal(icl.tensors()[name][row], tensor[0]), name
        for mine, theirs in zip(icl.position.records, alone.position.records, strict=True):
            own = [of_task[member] for of_task in mine["own_accuracy"][run]]
            assert own == pytest.approx(theirs["accuracy"][0], abs=1e-4)
    assert len({tuple(row[:20].tolist()) for row in icl.theta}) == 6


@pytest.mark.parametrize("backbone", [None, convolutional()])
def test_predictions_are_averaged_as_probabilities(backbone: torch.nn.Module | None) -> None:
    """By hand where the network is the digits one; where rows are computed one after another, by the net itself."""
    stream = digit_streams([6])[0]
    trainer = make_trainer(method("icl-ewc"), [stream], SHORT, backbone=backbone)
    trainer.run()
    record = trainer.position.records[-1]
    hand = Hand(DigitsLearner(4), 1, (2, 2))
    for task in range(2):
        split = stream.tasks[task].test
        x = normalised(split, stream)
        if backbone is None:
            each = [hand.logits(row.double(), x, task)[0].softmax(1) for row in trainer.theta]
        else:
            heads = torch.tensor([task])
            each = [trainer.net.forward(row, x.float(), heads).logits.softmax(1) for row in trainer.theta]
        mean = sum(each) / 3
        right = 100 * float((mean.argmax(1) == split.labels).double().mean())
        assert record["accuracy"][0][task] == pytest.approx(right, abs=1e-3)
        for member, p in enumerate(each):
            alone = 100 * float((p.argmax(1) == split.labels).double().mean())
            assert record["own_accuracy"][0][task][member] == pytest.approx(alone, abs=1e-3)
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        apart = sum(float((each[i] - each[j]).norm(dim=1).mean()) for i, j in pairs) / 6
        assert record["euclidean"][0][task] == pytest.approx(apart, abs=1e-4)


def test_runs_of_unequal_sizes_equal_runs_alone() -> None:
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(([90, 40], [33, 70], [64, 5]))]
    together = trained("icl-ewc", streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained("icl-ewc", [stream], training))


def test_a_member_that_diverges_ends_its_run_alone() -> None:
    streams = digit_streams([0, 1, 2])
    poisoned = make_trainer(method("icl-ewc"), streams, SHORT)
    poisoned.theta[4] = torch.inf  # the second member of the second run
    poisoned.run()
    assert poisoned.position.diverged == [None, [0, 0], None]
    assert poisoned.live == [0, 1, 2, 6, 7, 8]
    clean = trained("icl-ewc", [streams[0], streams[2]])
    assert_same(poisoned, 0, clean, 0)
    assert_same(poisoned, 2, clean, 1)
    assert torch.tensor(poisoned.position.records[-1]["accuracy"][1]).isnan().all()


def test_some_runs_of_a_state_bring_all_their_members(tmp_path: Path) -> None:
    streams = digit_streams([0, 1, 2])
    whole = trained("icl-ewc", streams)
    begun = make_trainer(method("icl-ewc"), streams, SHORT)

    def stop(t: Trainer) -> bool:
        return (t.position.phase, t.position.epoch) == (1, 1)

    with pytest.raises(Interrupted):
        begun.run(stop)
    save_state(tmp_path / "state", begun.tensors(), begun.position, "me")
    some = make_trainer(method("icl-ewc"), [streams[2], streams[0]], SHORT)
    some.position = load_state(tmp_path / "state", some.tensors(), "me", [2, 0])
    some.run()
    assert_same(some, 0, whole, 2)
    assert_same(some, 1, whole, 0)


@given(seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=5, unique=True), members=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_rows_have_seeds_of_their_own_and_the_tasks_of_their_run(seeds: list[int], members: int) -> None:
    streams = [replace(hand_stream([4]), seed=seed) for seed in seeds]
    rows = member_rows(streams, members)
    assert len(rows) == len(seeds) * members == len({row.seed for row in rows})
    for number, row in enumerate(rows):
        assert row.tasks is streams[number // members].tasks
    assert [row.seed for row in rows[::members]] == seeds


def test_they_average_probabilities_and_not_logarithms() -> None:
    """Two are rather sure of class 1, the third is sure that it is not: 0.88, 0.88 and 0 are 0.59 on average."""
    trainer = make_trainer(method("icl-ewc"), [hand_stream([40, 30], classes=[3, 3])], SHORT)
    trainer.theta.zero_()
    for row, odds in zip(trainer.theta, (2.0, 2.0, -20.0), strict=True):
        trainer.net.layout.view(row, "head.bias")[:] = torch.tensor([0.0, odds, -30.0])
    share = [100 * float((task.test.labels == 1).float().mean()) for task in trainer.streams[0].tasks]
    assert share == pytest.approx([30, 30])
    assert trainer._evaluate().accuracy[0].tolist() == pytest.approx(share)
