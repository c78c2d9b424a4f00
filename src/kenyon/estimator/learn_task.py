"""Learning one task: from its samples and the knowledge before to the knowledge after.

A network does not grow in place. A wider one is built, whose new numbers are those it would have had from the start
(every initial weight is a function of the seed and of its purpose), and the learned state is copied over them, name
by name. So a learner that meets its tasks one by one ends with the numbers of one that had them all from the start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from kenyon.data.tasks import Split, Stream, Task
from kenyon.estimator.errors import SettingError, as_setting_errors, as_token_errors
from kenyon.estimator.knowledge import Knowledge, PastTask
from kenyon.estimator.settings import Setup
from kenyon.metrics import Array
from kenyon.models import Layout, Net
from kenyon.random import Purpose, key, shuffled
from kenyon.training import Trainer
from kenyon.training.checkpoint import Position
from kenyon.training.replay import kept_samples
from kenyon.training.trainer import Watcher
from kenyon.utils.text import printable
from kenyon.utils.threads import cpu_threads, single_precision

if TYPE_CHECKING:
    from kenyon.estimator.inputs import Labels


@dataclass(frozen=True, eq=False)
class TaskData:
    """The samples of a task, with labels counted from 0 within it. Splits may share a pool."""

    name: str
    labels: Labels  # the classes, sorted
    train: Split
    validation: Split | None
    test: Split | None


@single_precision()
def learn_task(data: TaskData, setup: Setup, before: Knowledge | None, watch: Watcher | None) -> Knowledge:
    if before is not None:
        setup.check_fixed(before.fixed)
    trainer = setup.trainer(_stream(data, setup, before))
    try:
        return _train(trainer, data, setup, before, watch)
    finally:
        trainer.close()


def _train(
    trainer: Trainer, data: TaskData, setup: Setup, before: Knowledge | None, watch: Watcher | None
) -> Knowledge:
    if before is not None:
        _check_shapes(before.net, trainer.net, before.net.backbone_names, trainer.net.backbone_names)
        resume(trainer, before.tensors, before.net.layout, len(before.stream.tasks))
    with cpu_threads(1 if trainer.net.small else None), as_setting_errors(), as_token_errors():
        position = trainer.run(watch)
    if not trainer.live:
        diverged = position.diverged[0]
        assert diverged is not None
        raise SettingError(
            f"Learning task '{data.name}', the loss was no longer finite in epoch {diverged[1] + 1}. "
            f"{trainer.why_diverged(0)}What was learned before is as it was. Choose a smaller rate than "
            f"{setup.training.rate:g}, or smaller strengths."
        )
    after = Knowledge(
        trainer.net,
        _kept_stream(trainer),
        (*(before.labels if before else ()), data.labels),
        setup.form,
        trainer.tensors(),
        _with_row(before.matrix if before else None, position.records[-1]["accuracy"][0]),
        np.zeros((0, 0)),
        setup.fixed,
    )
    row = [after.inferred_accuracy(task) for task in range(len(after.names))]
    return replace(after, inferred=_with_row(before.inferred if before else None, row))


def _with_row(matrix: Array | None, row: Sequence[float]) -> Array:
    """Add a row to a matrix of accuracies, and a column that is NaN in earlier rows."""
    T = len(row)
    larger = np.full((T, T), np.nan)
    if matrix is not None:
        larger[: T - 1, : T - 1] = matrix
    larger[T - 1] = row
    return larger


def split_validation(labels: Tensor, share: float, seed: int, task: int) -> tuple[Tensor, Tensor]:
    """Return the places of training and validation samples: a random share, at least one, but at least one sample of
    every class trains. Nothing is held out if every class has one sample.
    """
    order = shuffled(torch.tensor([key(seed, Purpose.ORDER, -1, task)]), torch.tensor([len(labels)]), len(labels))[0]
    spare = np.ones(len(labels), dtype=bool)
    spare[np.unique(labels[order].numpy(), return_index=True)[1]] = False  # the first of every class
    wanted = max(1, round(share * len(labels))) if share > 0 else 0
    held_out = torch.from_numpy(spare & (np.cumsum(spare) <= wanted))
    return order[~held_out], order[held_out]


# ---------------------------------------------------------------------- streams


def _stream(data: TaskData, setup: Setup, before: Knowledge | None) -> Stream:
    """Return the learned tasks and the new one, over one pool. A single pool is not copied."""
    none = torch.zeros(0, dtype=torch.long)
    splits = [part or Split(data.train.pool, none, none) for part in (data.train, data.validation, data.test)]
    pools: dict[int, Tensor] = {} if before is None or not len(before.pool) else {id(before.pool): before.pool}
    pools |= {id(split.pool): cast(Tensor, split.pool) for split in splits}
    starts = dict(zip(pools, accumulate(map(len, pools.values()), initial=0), strict=False))
    pool = cast(Tensor, data.train.pool) if len(pools) == 1 else torch.cat(list(pools.values()))
    moved = [Split(pool, split.index + starts[id(split.pool)], split.labels) for split in splits]
    tasks = [] if before is None else [_over(task, pool) for task in before.stream.tasks]
    new = PastTask(data.name, tuple(map(str, data.labels)), *moved)
    return Stream("arriving", setup.seed, (*tasks, new), setup.form.mean, setup.form.std, heads=setup.fixed["heads"])


def _kept_stream(trainer: Trainer) -> Stream:
    """Return the learned tasks, over a pool of their kept samples alone."""
    stream = trainer.streams[0]
    tasks = [past_task(trainer, task) for task in range(len(stream.tasks))]
    used = torch.cat([split.index for task in tasks for split in (task.train, task.test)])
    places = torch.zeros(len(stream.pool), dtype=torch.long)
    places[used] = torch.arange(len(used))
    pool = cast(Tensor, stream.pool)[used]
    return replace(stream, tasks=tuple(_over(task, pool, places) for task in tasks))


def past_task(trainer: Trainer, task: int) -> PastTask:
    """Return a finished task with its test samples, and the training samples that the method keeps."""
    stream = trainer.streams[0]
    finished, replay = stream.tasks[task], trainer.method.replay
    none = torch.zeros(0, dtype=torch.long)
    kept = none if replay is None else kept_samples(stream, task, replay.memory)
    pool = finished.train.pool
    memory = Split(pool, finished.train.index[kept], finished.train.labels[kept])
    return PastTask(finished.name, finished.classes, memory, Split(pool, none, none), finished.test)


def _over(task: Task, pool: Tensor, places: Tensor | None = None) -> PastTask:
    """Return a task over another pool, in which the sample at i is at places[i] (at i, if None)."""

    def moved(split: Split) -> Split:
        return Split(pool, split.index if places is None else places[split.index], split.labels)

    return PastTask(task.name, task.classes, moved(task.train), moved(task.validation), moved(task.test))


# ---------------------------------------------------------------------- resuming after earlier tasks


def resume(trainer: Trainer, learned: Mapping[str, Tensor], before: Layout, tasks: int) -> None:
    """Copy the state of learned tasks, of a network with the layout `before`, into a new trainer, and set its
    position to the next task.
    """
    net = trainer.net
    for name, tensor in trainer.tensors().items():
        if name in learned:  # another training regime may have further tensors
            copy_state(learned[name], before, tensor, net.layout)
            if tensor.shape[1:] == (net.layout.size,):
                net.statistics.carry_over(net.layout, tensor, net.head_of(tasks - 1))
    phase = tasks * len(trainer.method.stages)
    trainer.position = Position(phase=phase, diverged=list(trainer.position.diverged))


def copy_state(old: Tensor, before: Layout, new: Tensor, after: Layout) -> None:
    """Copy a tensor of the state into its place in a larger one, whose other numbers stay.

    A tensor holds whole rows (..., P), their protected parts (..., Pp), or no rows.
    """
    if old.shape[-1] in (before.size, before.protected):
        whole = old.shape[-1] == before.size
        for name, segment in before.segments.items():
            if whole or segment.stop <= before.protected:
                _copy_corner(before.view(old, name), after.view(new, name))
    else:
        _copy_corner(old, new)


def _copy_corner(old: Tensor, new: Tensor) -> None:
    """Copy into the beginning of every axis: tasks, and classes of the largest one, are added at the end."""
    new[tuple(slice(size) for size in old.shape)] = old


def check_rebuilds(setup: Setup, known: Knowledge) -> None:
    """Raise SettingError unless the setup is that of a learner's knowledge, and builds its network again."""
    setup.check_fixed(known.fixed)
    now = setup.net([len(labels) for labels in known.labels])
    _check_shapes(known.net, now, known.net.layout.segments, now.layout.segments)


def _check_shapes(before: Net, now: Net, *names: Iterable[str]) -> None:
    """Raise SettingError if parameters of these names have other shapes for each learner."""
    for name in dict.fromkeys(chain(*names)):
        old, new = (net.layout.segments.get(name) for net in (before, now))
        if old is None or new is None or old.shape != new.shape:
            shapes = [None if part is None else part.shape[1:] for part in (old, new)]
            raise SettingError(
                f"The backbone is another than that of the tasks before: {name} was {shapes[0]} and is {shapes[1]}. "
                "Give the backbone that they were learned with, or begin with a new learner."
            )


# ---------------------------------------------------------------------- progress


@contextmanager
def progress_bar(name: str, *, verbose: bool) -> Iterator[Watcher | None]:
    """Show a progress bar on standard error, if that is a terminal. Yields the callback of the training loop."""
    if not verbose:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal:  # in older versions of Rich disabled bars end in an empty line
        yield None
        return
    columns = TextColumn("{task.description}", style="bold", markup=False), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(printable(name), total=None)

        def watch(trainer: Trainer) -> bool:
            at, stages, epochs = trainer.position, len(trainer.method.stages), trainer.training.epochs
            done = (at.phase - (len(trainer.phases) - stages)) * epochs + at.epoch
            bars.update(bar, total=stages * epochs, completed=done)
            return False

        yield watch


def summary(known: Knowledge, seconds: float) -> str:
    """Return a line on the task learned last, and the mean accuracies of all tasks."""
    task, labels = known.stream.tasks[-1], known.labels[-1]
    line = f"{printable(task.name)}: {len(labels)} classes, {seconds:.1f} s"
    tested = ~np.isnan(known.matrix[-1])
    if tested.any():
        named, inferred = (float(np.mean(row[-1][tested])) for row in (known.matrix, known.inferred))
        line += f"; {int(tested.sum())} tasks tested: {named:.1f} % right with the task named, {inferred:.1f} without"
    return line
