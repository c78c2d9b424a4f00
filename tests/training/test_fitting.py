"""A network that was made for other tasks or another method is refused before it learns, with words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from kenyon.data import Stream
from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.models import Net
from kenyon.training import Trainer
from tests.training.fleets import SHORT, digit_streams, method


def net_for(stream: Stream, **changed: Any) -> Net:
    given = {"input_shape": stream.input_shape, "class_counts": stream.class_counts} | changed
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), **given)  # type: ignore[arg-type]


def trainer(chosen: Method | None = None, heads: str = "task", **changed: Any) -> Trainer:
    stream = replace(digit_streams([0])[0], heads="task")
    if heads == "shared":
        tasks = tuple(replace(task, classes=stream.tasks[0].classes) for task in stream.tasks)
        stream = replace(stream, heads="shared", tasks=tasks)
    return Trainer(net_for(stream, **changed), [stream], chosen or method("ewc"), SHORT)


@pytest.mark.parametrize("counts", [(5, 5), (1, 1), (2,), (2, 2, 2), (2, 3)])
@pytest.mark.parametrize("name", ["ewc", "joint"])
def test_other_classes(counts: tuple[int, ...], name: str) -> None:
    listed = ", ".join(map(str, counts))
    with pytest.raises(ConfigError, match=rf"tasks of {listed} classes, .* digits have 2, 2\. .*class_counts"):
        trainer(method(name), class_counts=counts)


def test_heads_that_are_shared_on_one_side_only() -> None:
    with pytest.raises(ConfigError, match=r"has one head, .* need a head a task\. .*shared_head="):
        trainer(shared_head=True)
    with pytest.raises(ConfigError, match=r"has a head a task, .* need one head for all\. .*shared_head="):
        trainer(heads="shared")
    with pytest.raises(ConfigError, match=r"tasks of 2, 2, 2 classes"):
        trainer(heads="shared", shared_head=True, class_counts=(2, 2, 2))
    trainer(heads="shared", shared_head=True)


def test_samples_of_another_shape() -> None:
    with pytest.raises(ConfigError, match=r"the shape \(64,\), and those of digits have \(1, 8, 8\)\. .*input_shape"):
        trainer(input_shape=(64,))


def test_what_the_method_learns_itself() -> None:
    chosen = method("caf-ewc")
    with pytest.raises(ConfigError, match=r"learns af1 \(2, 2\), afs \(2, 2\) .* room for nothing\. .*learned="):
        trainer(chosen, learners=2)
    with pytest.raises(ConfigError, match=r"learns nothing beside .* room for afs \(2, 2\)"):
        trainer(learners=2, learned={"afs": (2, 2)})
    learned = chosen.learned(net_for(digit_streams([0])[0], learners=2))
    with pytest.raises(ConfigError, match=r"room for af1 \(2, 2\), afs \(2, 2\)"):
        trainer(chosen, learners=3, learned=learned)
    trainer(chosen, learners=2, learned=learned)


def test_an_active_column_on_one_side_only() -> None:
    with pytest.raises(ConfigError, match=r"has no active column, and the method needs one\. .*active_column="):
        trainer(method("pnc"))
    with pytest.raises(ConfigError, match=r"has an active column, and the method needs none\."):
        trainer(active_column=True)


def test_no_stream() -> None:
    with pytest.raises(ConfigError, match="no stream to learn from"):
        Trainer(net_for(digit_streams([0])[0]), [], method("ewc"), SHORT)
