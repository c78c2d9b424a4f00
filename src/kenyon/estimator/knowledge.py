"""Tasks that arrive one by one: a trainer of one task more goes on where another has ended.

A network does not grow in place. A wider one is made, whose new numbers are those it would have had from the
beginning (every first weight is a function of the seed and of what it is for), and all that was learned is laid over
them, name by name. So a fleet that meets its tasks one by one ends with the numbers of one that knew them all.

Which task a sample belongs to, where nobody says so: every head answers, and the surest is believed.

A head of C classes has the confidence c = (max p - 1/C) / (1 - 1/C): 0 where all classes are equally likely, 1 where
one is certain, however many there are. Tasks weigh as their heads are confident,

    P(task t) = c_t / sum over tasks of c,    P(class) = sum over tasks t that have it of P(task t) p_t(class),

so that with one task the probabilities are those of its head. Heads were never shown samples of other tasks, and
nothing makes them unsure there: expect far less than with the task named. Largest logits, energies, entropies and the
agreement of the learners told tasks of digits apart no better.

All that a learner keeps when a task's data are gone, and what it says of new samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kenyon.data.tasks import Split, Stream, Task
from kenyon.errors import unknown
from kenyon.estimator.errors import InputError, as_token_errors
from kenyon.estimator.inputs import Form, Labels
from kenyon.estimator.settings import single_precision
from kenyon.metrics import Array
from kenyon.models import Layout, Net
from kenyon.training import Trainer
from kenyon.training.batches import Fleet
from kenyon.training.checkpoint import Position
from kenyon.training.device import Lanes, Runs, on_device
from kenyon.training.evaluation import chunk_of
from kenyon.training.replay import kept_samples
from kenyon.utils.threads import cpu_threads


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


def task_weights(heads: Sequence[Tensor]) -> Tensor:
    """P(task), (N, T), from what the heads say, (N, C_t) each."""
    chance = [1 / said.shape[1] for said in heads]
    sure = [(said.amax(1) - least) / (1 - least) for said, least in zip(heads, chance, strict=True)]
    confidence = torch.stack(sure, dim=1).clamp(min=1e-9)  # where no head is, all weigh the same
    return confidence / confidence.sum(1, keepdim=True)


def across_tasks(heads: Sequence[Tensor], labels: Sequence[Labels], classes: Labels) -> Tensor:
    """P(class), (N, C) for all classes of all tasks."""
    weights = task_weights(heads)
    found = torch.zeros(len(weights), len(classes), dtype=weights.dtype)
    for task, (said, mine) in enumerate(zip(heads, labels, strict=True)):
        places = torch.from_numpy(np.searchsorted(classes, mine))
        found.index_add_(1, places, weights[:, task : task + 1] * said)
    return found


ROUND = 32  # samples: small networks see multiples of it, so that what one says does not depend on the others


@dataclass(frozen=True, eq=False)
class Knowledge:
    net: Net
    stream: Stream  # the tasks learned: of each its test samples, and those training samples that a method keeps
    labels: tuple[Labels, ...]  # of each task its classes, sorted
    form: Form
    tensors: dict[str, Tensor]  # the state of training, from which the next task goes on
    matrix: Array  # (T, T) accuracy of task i after task t, the task named, in per cent; NaN where nothing tests
    inferred: Array  # (T, T) the same, the task inferred
    fixed: dict[str, Any]  # parameters that can no longer change

    @property
    def pool(self) -> Tensor:
        """Samples that are kept."""
        assert isinstance(self.stream.pool, Tensor)
        return self.stream.pool

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.stream.tasks]

    @property
    def classes(self) -> Labels:
        return np.unique(np.concatenate(self.labels))

    def classes_of(self, task: str | None) -> Labels:
        """The task's, or, without one, those of all tasks; sorted."""
        return self.classes if task is None else self.labels[self.place(task)]

    def place(self, task: str) -> int:
        if not isinstance(task, str) or task not in self.names:
            raise InputError(str(unknown("task", task, self.names)))
        return self.names.index(task)

    def rows(self, task: int) -> Tensor:
        """The rows (M, P) of the networks that answer for a task: one, or as many as learn independently."""
        learners = self.tensors.get("learners")  # (R, T, P) where every task has a learner of its own
        return self.tensors["theta"] if learners is None else learners[:, task].contiguous()

    @property
    def apart(self) -> list[int]:
        """Tasks whose answers differ: one stands for all where they share a network and a head."""
        return [0] if self.net.shared and "learners" not in self.tensors else list(range(len(self.names)))

    def across_tasks(self, inputs: Tensor) -> Tensor:
        """The probabilities of all classes, (N, C), whatever task inputs belong to."""
        labels = [self.labels[task] for task in self.apart]
        return across_tasks(self.probabilities(inputs, self.apart), labels, self.classes)

    def probabilities_of(self, inputs: Tensor, task: str | None) -> Tensor:
        """Of the classes of a task, or, without one, of all, (N, C)."""
        return self.across_tasks(inputs) if task is None else self.probabilities(inputs, [self.place(task)])[0]

    def likeliest(self, inputs: Tensor, task: str | None) -> Labels:
        """The likeliest class of every sample among them, (N,)."""
        return self.classes_of(task)[self.probabilities_of(inputs, task).argmax(1).numpy()]

    def likeliest_task(self, inputs: Tensor) -> Labels:
        """The name of the task that every sample most likely belongs to, (N,)."""
        weights = task_weights(self.probabilities(inputs, self.apart))
        return np.array(self.names)[weights.argmax(1).numpy()]

    @single_precision()
    def examples(self, most: int = 8) -> Tensor:
        """A few inputs: kept samples where there are any, else made-up ones."""
        form, pool = self.form, self.pool
        if len(pool):
            return pool[:: max(1, len(pool) // most)][:most]
        if form.kind == "tokens":  # the first is the only one that is certainly known
            return torch.zeros(most, *form.shape, dtype=torch.int64)
        drawn = torch.randn(most, *form.shape, generator=torch.Generator().manual_seed(0))
        if form.kind == "bytes":
            return (drawn * 50 + 128).clamp(0, 255).to(torch.uint8)
        along = (-1, *(1,) * (len(form.shape) - 1))
        mean, std = form.mean or (0.0,), form.std or (1.0,)
        return drawn * torch.tensor(std).view(along) + torch.tensor(mean).view(along)

    @torch.no_grad()
    @single_precision()
    @cpu_threads(None)
    def probabilities(self, inputs: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """What the heads of some tasks say of inputs (N, ...): (N, C) each, in double precision."""
        if "learners" in self.tensors and len(tasks) > 1:
            return [self.probabilities(inputs, [task])[0] for task in tasks]
        net, theta = self.net, self.rows(tasks[0])
        M, N, execute, chunk = len(theta), len(inputs), net.executor, chunk_of(net.input_shape)
        heads = torch.tensor([net.head_of(task) for task in tasks], device=net.device)
        none = torch.zeros(0, dtype=torch.long)
        empty = Split(inputs, none, none)
        stream = replace(self.stream, tasks=(Met("asked", ("any",), empty, empty, empty),))
        said = torch.zeros(M, len(tasks), N, max(net.class_counts), dtype=torch.float64, device=net.device)
        with on_device(net.device), as_token_errors():
            channels, frame, refer = execute.input_channels, execute.frame, not net.small
            fleet = Fleet([stream] * M, net.device, channels, frame=frame, by_reference=refer)

            def work(run: Runs) -> None:
                for start in range(0, N, chunk):
                    there = min(chunk, N - start)
                    size = -(-there // ROUND) * ROUND if net.small else there
                    index = torch.arange(start, start + size, device=net.device).clamp(max=N - 1)
                    places = index.expand(M, -1).contiguous() if isinstance(run, slice) else index
                    out = net.every_head(theta[run], fleet.images(run, places), heads)
                    said[run, :, start : start + there] = out[..., :there, :].double()

            Lanes(net.device, M, together=net.together, threads=execute.threads).each(range(M), work)
        mean = said.softmax(-1).mean(0).cpu()  # (n, N, C)
        parts = [p[:, : len(self.labels[task])] for p, task in zip(mean, tasks, strict=True)]
        return [part / part.sum(1, keepdim=True) for part in parts]
