"""A fleet that meets its tasks one by one has the numbers of one that knew them all from the beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kenyon.data import Stream
from kenyon.estimator.learn_task import copy_state, past_task, resume
from kenyon.methods import Method, find_method
from kenyon.models import Layout, Net, digits_cnn, digits_mlp
from kenyon.training import Trainer, Training
from tests.references import hand_stream
from tests.training.fleets import SHORT, method

# One of every kind: what differs in strengths or terms alone grows alike.
KINDS = [
    *("finetune", "random-init", "discrete", "er"),
    *("ewc", "mas", "si", "rwalk", "agscl", "pnc", "ewc-af2", "icl-ewc", "caf-ewc"),
]


def trainer_of(t_method: Method, stream: Stream, training: Training, **options: Any) -> Trainer:
    module = options.pop("backbone", None) or digits_mlp(4)
    K, members = (1, 2) if t_method.apart else (3 if t_method.multi else 1, 1)
    place = (module, stream.input_shape, stream.class_counts)
    bare = Net(*place, learners=K)
    learned = {name: shape for p in t_method.penalties for name, shape in p.learned(bare).items()}
    net = Net(*place, learners=K, learned=learned, active_column=t_method.active_column, **options)
    return Trainer(net, [stream], t_method, training, members=members)


def one_by_one(t_method: Method, stream: Stream, training: Training, **options: Any) -> Trainer:
    trainer = None
    for t, task in enumerate(stream.tasks):
        before = [] if trainer is None else [past_task(trainer, i) for i in range(t)]
        grown = trainer_of(t_method, replace(stream, tasks=(*before, task)), training, **options)
        if trainer is not None:
            resume(grown, trainer.tensors(), trainer.net.layout, t)
        grown.run()
        trainer = grown
    assert trainer is not None
    return trainer


def assert_same(one: Trainer, other: Trainer) -> None:
    mine, theirs = one.tensors(), other.tensors()
    assert set(mine) == set(theirs)
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name
    assert one.position.records[-1]["accuracy"] == other.position.records[-1]["accuracy"]


@pytest.mark.parametrize("name", KINDS)
def test_to_the_last_bit(name: str) -> None:
    """Methods of every kind that learn task after task, with unequal numbers of samples."""
    t_method, stream = method(name), hand_stream([70, 33, 50], classes=[2, 2, 2])
    whole = trainer_of(t_method, stream, SHORT)
    whole.run()
    assert_same(one_by_one(t_method, stream, SHORT), whole)


CARRIED = replace(SHORT, schedule="step", validation=0.0, optimiser="sgd", carry=True, penalties_from=1)


@pytest.mark.parametrize("name", ["caf-ewc", "ewc-af2"])
def test_momentum_and_gates_go_on(name: str) -> None:
    training, stream = CARRIED, hand_stream([70, 33, 50], seed=3)
    gate = {"gate": name == "caf-ewc"}
    whole = trainer_of(method(name), stream, training, **gate)
    whole.run()
    assert_same(one_by_one(method(name), stream, training, **gate), whole)


def test_convolutions() -> None:
    stream = hand_stream([40, 30], seed=1)
    whole = trainer_of(method("caf-mas"), stream, SHORT, backbone=digits_cnn(2))
    whole.run()
    assert_same(one_by_one(method("caf-mas"), stream, SHORT, backbone=digits_cnn(2)), whole)


@pytest.mark.parametrize("name", ["caf-ewc", "ewc-af2"])
def test_running_statistics_are_handed_on(name: str) -> None:
    """A new task begins with those of the task before, also where it was unknown then."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU())
    stream = hand_stream([40, 33, 30])
    whole = trainer_of(method(name), stream, SHORT, backbone=backbone)
    whole.run()
    assert_same(one_by_one(method(name), stream, SHORT, backbone=backbone), whole)


@pytest.mark.parametrize("name", ["caf-ewc", "er", "discrete"])
def test_a_shared_head_stays_one(name: str) -> None:
    stream = replace(hand_stream([40, 33, 30]), heads="shared")
    whole = trainer_of(method(name), stream, SHORT, shared_head=True)
    whole.run()
    assert_same(one_by_one(method(name), stream, SHORT, shared_head=True), whole)


@pytest.mark.parametrize("name", ["ewc", "caf-mas"])
def test_tasks_with_more_classes(name: str) -> None:
    """A head as wide as the largest task so far, instead of the largest of all: sums of other lengths round alike
    only by chance.
    """
    stream = hand_stream([60, 50, 40], classes=[2, 4, 3])
    whole = trainer_of(method(name), stream, SHORT)
    whole.run()
    grown = one_by_one(method(name), stream, SHORT)
    for key in ("theta", "importance"):
        assert torch.allclose(grown.tensors()[key], whole.tensors()[key], rtol=1e-3, atol=1e-5)


def test_replay_keeps_its_samples_and_no_others() -> None:
    t_method = find_method("er")({"memory": 4, "replay_batch": 8})
    grown = one_by_one(t_method, hand_stream([70, 33, 50], classes=[2, 2, 2]), SHORT)
    assert [len(task.train) for task in grown.streams[0].tasks] == [8, 8, 50]
    assert [len(task.validation) for task in grown.streams[0].tasks[:2]] == [0, 0]
    plain = one_by_one(method("ewc"), hand_stream([20, 20], classes=[2, 2]), SHORT)
    assert [len(task.train) for task in plain.streams[0].tasks] == [0, 20]


@given(
    tasks=st.integers(1, 4),
    classes=st.integers(1, 4),
    more=st.integers(0, 3),
    learners=st.integers(1, 3),
    runs=st.integers(1, 2),
)
@settings(max_examples=50, deadline=None)
def test_every_number_finds_its_place(tasks: int, classes: int, more: int, learners: int, runs: int) -> None:
    def layout(T: int, C: int) -> Layout:
        protected = {"w": (learners, 3, 2), "gate": (learners, T, 4)}
        return Layout(protected, {"head.weight": (T, C, 2), "head.bias": (T, C), "af1": (1, learners)})

    before, after = layout(tasks, classes), layout(tasks + 1, classes + more)
    old = torch.arange(runs * before.size, dtype=torch.float32).view(runs, -1) + 1
    new = torch.zeros(runs, after.size)
    copy_state(old, before, new, after)
    assert torch.equal(after.view(new, "head.weight")[:, :tasks, :classes], before.view(old, "head.weight"))
    assert torch.equal(after.view(new, "gate")[..., :tasks, :], before.view(old, "gate"))
    assert torch.equal(after.view(new, "af1"), before.view(old, "af1"))
    assert int((new > 0).sum()) == old.numel()  # nothing lost, nothing twice
    guarded = torch.zeros(runs, after.protected)
    copy_state(old[:, : before.protected].contiguous(), before, guarded, after)
    assert torch.equal(guarded, new[:, : after.protected])
    beside = torch.zeros(runs, 1)
    copy_state(old[:, :1].contiguous(), before, beside, after)
    assert torch.equal(beside, old[:, :1])
