"""What a run tells while it works; the command line draws it.

Progress that also goes to logs, one a run: losses and rate after every epoch, accuracies after every task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from kenyon.errors import expected
from kenyon.experiments.grid import AnyCell
from kenyon.experiments.store import PointFolder
from kenyon.integrations.loggers import Log, LoggedRun, Moment, open_log
from kenyon.training import Trainer


class Progress(Protocol):
    """What a plan's execution tells while it runs; the command line draws bars from it."""

    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None:
        """These runs begin to train together, with so many of their epochs behind them: see `Trainer.done`."""

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None:
        """These runs did not fit into the device's memory; they go on, at most so many together."""


class Silent:
    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None: ...


def check_progress(progress: Any) -> None:
    """Before anything is trained: that whoever is to be told can be."""
    told = [name for name in vars(Silent) if not name.startswith("_")]
    if not all(callable(getattr(progress, name, None)) for name in told):
        raise expected("progress", f"an object with the methods {', '.join(told)}", progress)


@contextmanager
def logging_to(name: str | None, progress: Progress, out: Path) -> Iterator[Progress]:
    """`progress`, with a log of this name a run beside it; None: as it is."""
    if name is None:
        yield progress
        return
    logged = Logged(name, progress, out)
    try:
        yield logged
    finally:
        logged.close(finished=False)


class Logged:
    def __init__(self, name: str, progress: Progress, out: Path) -> None:
        self.name, self.progress, self.out = name, progress, out
        self.logs: list[Log] = []  # one a run of the fleet that trains
        self.tested = 0  # tasks of it whose accuracies were told
        self.summed: torch.Tensor | None = None  # (R,) the losses of the phase up to the epoch before

    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None:
        self.close(finished=False)  # of a fleet that broke off for want of room
        self.progress.fleet_starts(cells, done, total)
        self.tested, self.summed = 0, None
        for cell in cells:
            self.logs.append(open_log(self.name, _described(cell, self.out, fresh=done == 0)))

    def epoch_done(self, trainer: Trainer) -> None:
        self.progress.epoch_done(trainer)
        while self.tested < len(trainer.position.records):
            self._tell_tests(trainer, self.tested)
            self.tested += 1
        if trainer.position.epoch:
            self._tell_epoch(trainer)
        else:
            self.summed = None  # the next phase adds up its own

    def fleet_ends(self, seconds: float) -> None:
        self.progress.fleet_ends(seconds)
        self.close(finished=True)

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None:
        self.progress.fleet_split(cells, most)
        self.close(finished=False)

    def close(self, *, finished: bool) -> None:
        while self.logs:
            self.logs.pop().close(finished=finished)

    def _tell_epoch(self, trainer: Trainer) -> None:
        """One transfer from the device an epoch: training waits for it, which it does not without a log."""
        at, validated = trainer.position, trainer.training.schedule == "plateau"
        summed = trainer.finite.losses.detach().clone()  # every training batch of the phase, every validation
        since = summed if self.summed is None else summed - self.summed
        self.summed = summed
        if validated:
            since = since - trainer.validation_loss
        batches = (trainer.engine.train_sizes / trainer.training.batch).ceil()
        rows = torch.stack([since / batches, trainer.validation_loss, trainer.rate])  # (3, R), a row a member
        runs = rows.unflatten(1, (len(self.logs), trainer.members)).mean(2).tolist()
        moment = Moment(at.phase * trainer.training.epochs + at.epoch, tested=False)
        for number, (training, validation, rate) in enumerate(zip(*runs, strict=True)):
            if at.diverged[number] is None:
                losses = {"loss/training": training} | ({"loss/validation": validation} if validated else {})
                self.logs[number].add(moment, losses | {"rate": rate})

    def _tell_tests(self, trainer: Trainer, task: int) -> None:
        """After task `task` all learned so far; after joint training, which is one, all there are."""
        at, phases = trainer.position, len(trainer.method.stages)
        learned = task + 1 if len(trainer.phases) > phases else len(trainer.streams[0].tasks)
        moment = Moment((task + 1) * phases * trainer.training.epochs, tested=True)
        for number, log in enumerate(self.logs):
            fallen = at.diverged[number]
            if fallen is None or task < fallen[0]:
                accuracy = at.records[task]["accuracy"][number][:learned]
                values = {f"accuracy/task-{t + 1:02}": value for t, value in enumerate(accuracy)}
                log.add(moment, {"accuracy/average": sum(accuracy) / learned, **values})


def _described(cell: AnyCell, out: Path, *, fresh: bool) -> LoggedRun:
    config = cell.config
    group = f"{config.benchmark} {cell.point.label}"
    path = PointFolder(out, cell.point).path.relative_to(out) / f"seed-{cell.seed}"
    return LoggedRun(out, path, f"{group} seed {cell.seed}", group, {**config.as_dict(), "seed": cell.seed}, fresh)
