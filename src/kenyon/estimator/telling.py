"""What a learner tells while it learns, if asked to: a bar on a terminal, and a line when a task is learned."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kenyon.estimator.knowledge import Knowledge
from kenyon.train import Trainer
from kenyon.train.loop import Watcher
from kenyon.words import printable


@contextmanager
def telling(name: str, *, verbose: bool) -> Iterator[Watcher | None]:
    """On standard error. Gives what the training loop calls after every epoch."""
    if not verbose:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr)
    if not console.is_terminal:  # bars that are disabled end in an empty line, in older versions of Rich
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
    """The task learned last, and what the tests say of all so far."""
    task, labels = known.stream.tasks[-1], known.labels[-1]
    line = f"{printable(task.name)}: {len(labels)} classes, {seconds:.1f} s"
    tested = ~np.isnan(known.matrix[-1])
    if tested.any():
        named, inferred = (float(np.mean(row[-1][tested])) for row in (known.matrix, known.inferred))
        line += f"; {int(tested.sum())} tasks tested: {named:.1f} % right with the task named, {inferred:.1f} without"
    return line
