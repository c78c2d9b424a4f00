"""Tasks that arrive one by one: a trainer of one task more goes on where another has ended.

A network does not grow in place. A wider one is made, whose new numbers are those it would have had from the
beginning (every first weight is a function of the seed and of what it is for), and all that was learned is laid over
them, name by name. So a fleet that meets its tasks one by one ends with the numbers of one that knew them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.nets import Layout
from kenyon.streams.task import Split, Task
from kenyon.train import Trainer
from kenyon.train.memory import kept_samples
from kenyon.train.state import Position


@dataclass(frozen=True, eq=False)
class Met(Task):
    """A task of which any part of the data may be gone."""

    def __post_init__(self) -> None: ...


def past(trainer: Trainer, task: int) -> Met:
    """A task that is over: its test samples, and those training samples that the method keeps."""
    stream = trainer.streams[0]
    met, replay = stream.tasks[task], trainer.method.replay
    none = torch.zeros(0, dtype=torch.long)
    kept = none if replay is None else kept_samples(stream, task, replay.memory)
    pool = met.train.pool
    memory = Split(pool, met.train.index[kept], met.train.labels[kept])
    return Met(met.name, met.classes, memory, Split(pool, none, none), met.test)


def go_on(trainer: Trainer, learned: Mapping[str, Tensor], before: Layout, tasks: int) -> None:
    """Lay the state of so many learned tasks, of a network with the layout `before`, into a trainer that is new, and
    put it where the next task begins.
    """
    net = trainer.net
    for name, tensor in trainer.tensors().items():
        if name in learned:  # a regime that has changed may follow what none before did
            carry(learned[name], before, tensor, net.layout)
            if tensor.shape[1:] == (net.layout.size,):
                net.statistics.hand_on(net.layout, tensor, net.head_of(tasks - 1))
    phase = tasks * len(trainer.method.stages)
    trainer.position = Position(phase=phase, diverged=list(trainer.position.diverged))


def carry(old: Tensor, before: Layout, new: Tensor, after: Layout) -> None:
    """Copy one tensor of a state into its place in a larger one, whose other numbers stay.

    A tensor of a state is made of whole rows (..., P), of their protected parts (..., Pp), or knows nothing of rows.
    """
    if old.shape[-1] in (before.size, before.protected):
        whole = old.shape[-1] == before.size
        for name, segment in before.segments.items():
            if whole or segment.stop <= before.protected:
                _lay(before.view(old, name), after.view(new, name))
    else:
        _lay(old, new)


def _lay(old: Tensor, new: Tensor) -> None:
    """What grows, grows at the end of an axis: one task more, or more classes in the largest."""
    new[tuple(slice(size) for size in old.shape)] = old
