"""Progress of runs: the calls that the command line draws bars from, and logs of the numbers, one for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kenyon.errors import expected
from kenyon.experiments.store import PointFolder

if TYPE_CHECKING:
    from kenyon.experiments.grid import RunSpec
    from kenyon.integrations.loggers import Log, LoggedRun
    from kenyon.rl.trainer import Agents
    from kenyon.training import Trainer


class Progress(Protocol):
    """Calls during the execution of a plan."""

    def fleet_starts(self, runs: Sequence[RunSpec], done: int, total: int) -> None:
        """These runs begin to train together. `done` of their `total` epochs are complete: see `Trainer.done`."""

    def epoch_done(self, trainer: Trainer) -> None: ...

    def update_done(self, agents: Agents) -> None:
        """An update on games is done. Only plans of games call it."""

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, runs: Sequence[RunSpec], most: int) -> None:
        """These runs did not fit into the device's memory; they continue, at most `most` together."""


class Silent:
    """Progress that is not shown."""

    def fleet_starts(self, runs: Sequence[RunSpec], done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Trainer) -> None: ...

    def update_done(self, agents: Agents) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, runs: Sequence[RunSpec], most: int) -> None: ...


def check_progress(progress: Any, *, games: bool = False) -> None:
    """Raise ConfigError unless an object has the methods of `Progress`."""
    calls = [name for name in vars(Silent) if not name.startswith("_") and (games or name != "update_done")]
    if not all(callable(getattr(progress, name, None)) for name in calls):
        raise expected("progress", f"an object with the methods {', '.join(calls)}", progress)


@contextmanager
def logging_to(name: str | None, progress: Progress, out: Path) -> Iterator[Progress]:
    """Return `progress` with a log of this name for each run, or `progress` itself without a name."""
    if name is None:
        yield progress
        return
    logged = Logged(name, progress, out)
    try:
        yield logged
    finally:
        logged.close(finished=False)


class Logged:
    """Progress that also writes losses and rate after every epoch, and accuracies after every task."""

    def __init__(self, name: str, progress: Progress, out: Path) -> None:
        self.name, self.progress, self.out = name, progress, out
        self.logs: list[Log] = []  # one for each run of the job
        self.tested = 0  # tasks whose accuracies are written
        self.summed: torch.Tensor | None = None  # (R,) sum of the phase's losses up to the epoch before

    def fleet_starts(self, runs: Sequence[RunSpec], done: int, total: int) -> None:
        from kenyon.integrations.loggers import open_log

        self.close(finished=False)  # of a job that did not fit
        self.progress.fleet_starts(runs, done, total)
        self.tested, self.summed = 0, None
        for run in runs:
            self.logs.append(open_log(self.name, _described(run, self.out, fresh=done == 0)))

    def update_done(self, agents: Agents) -> None:
        self.progress.update_done(agents)

    def epoch_done(self, trainer: Trainer) -> None:
        self.progress.epoch_done(trainer)
        while self.tested < len(trainer.position.records):
            self._write_tests(trainer, self.tested)
            self.tested += 1
        if trainer.position.epoch:
            self._write_epoch(trainer)
        else:
            self.summed = None  # the next phase has its own sum

    def fleet_ends(self, seconds: float) -> None:
        self.progress.fleet_ends(seconds)
        self.close(finished=True)

    def fleet_split(self, runs: Sequence[RunSpec], most: int) -> None:
        self.progress.fleet_split(runs, most)
        self.close(finished=False)

    def close(self, *, finished: bool) -> None:
        while self.logs:
            self.logs.pop().close(finished=finished)

    def _write_epoch(self, trainer: Trainer) -> None:
        """Write losses and rates. Waits for one transfer from the device, which training without a log does not."""
        from kenyon.integrations.loggers import Moment

        at, validated = trainer.position, trainer.training.schedule == "plateau"
        summed = trainer.finite.losses.detach().clone()  # training batches and validations of the phase
        since = summed if self.summed is None else summed - self.summed
        self.summed = summed
        if validated:
            since = since - trainer.validation_loss
        batches = (trainer.engine.train_sizes / trainer.training.batch).ceil()
        rows = torch.stack([since / batches, trainer.validation_loss, trainer.rate])  # (3, R), a row for each network
        runs = rows.unflatten(1, (len(self.logs), trainer.members)).mean(2).tolist()
        moment = Moment(at.phase * trainer.training.epochs + at.epoch, tested=False)
        for number, (training, validation, rate) in enumerate(zip(*runs, strict=True)):
            if at.diverged[number] is None:
                losses = {"loss/training": training} | ({"loss/validation": validation} if validated else {})
                self.logs[number].add(moment, losses | {"rate": rate})

    def _write_tests(self, trainer: Trainer, task: int) -> None:
        """Write the accuracies of the tasks learned up to `task`; after joint training, of all."""
        from kenyon.integrations.loggers import Moment

        at, phases = trainer.position, len(trainer.method.stages)
        learned = task + 1 if len(trainer.phases) > phases else len(trainer.streams[0].tasks)
        moment = Moment((task + 1) * phases * trainer.training.epochs, tested=True)
        for number, log in enumerate(self.logs):
            fallen = at.diverged[number]
            if fallen is None or task < fallen[0]:
                accuracy = at.records[task]["accuracy"][number][:learned]
                values = {f"accuracy/task-{t + 1:02}": value for t, value in enumerate(accuracy)}
                log.add(moment, {"accuracy/average": sum(accuracy) / learned, **values})


def _described(run: RunSpec, out: Path, *, fresh: bool) -> LoggedRun:
    from kenyon.integrations.loggers import LoggedRun

    config = run.config
    group = f"{config.benchmark} {run.point.label}"
    path = PointFolder(out, run.point).path.relative_to(out) / f"seed-{run.seed}"
    return LoggedRun(out, path, f"{group} seed {run.seed}", group, {**config.as_dict(), "seed": run.seed}, fresh)
