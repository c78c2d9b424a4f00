"""How a long run shows itself: bars with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kenyon.experiments import Config
from kenyon.report.tables import duration
from kenyon.train import Trainer

LINE_EVERY = 30.0  # seconds between lines where there is no terminal


class RunProgress:
    """Draws on standard error, so that standard output holds results alone."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar: TaskID | None = None
        self.name, self.total, self.told = "", 0, time.monotonic()
        self.begun, self.begun_at = time.monotonic(), 0
        self.fallen: set[int] = set()

    def __enter__(self) -> RunProgress:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def fleet_starts(self, config: Config, seeds: Sequence[int], done: int, total: int) -> None:
        self.name, self.total, self.fallen = config.method, total, set()
        self.begun, self.begun_at = time.monotonic(), done
        seeded = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
        resumed = f", continuing at {100 * done // total}%" if done else ""
        if self.console.is_terminal:
            self.bar = self.bars.add_task(self.name, total=total, completed=done, where=f"{seeded}{resumed}")
        else:
            self._line(f"{self.name}: {seeded}{resumed}")

    def epoch_done(self, trainer: Trainer) -> None:
        at, phases, epochs = trainer.position, len(trainer.phases), trainer.training.epochs
        done = min(at.phase * epochs + at.epoch, self.total)
        where = f"task {min(at.phase + 1, phases)}/{phases}, epoch {at.epoch}/{epochs}"
        for run, place in enumerate(at.diverged):
            if place is not None and run not in self.fallen:
                self.fallen.add(run)
                self.console.print(
                    f"[yellow]{self.name}: seed {trainer.fleet.seeds[run]} stopped: its loss was no longer finite in "
                    f"task {place[0] + 1}, epoch {place[1] + 1}. {'The others go on.' if trainer.live else ''}[/]",
                    soft_wrap=True,
                )
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=done, where=where)
        elif time.monotonic() - self.told > LINE_EVERY and done > self.begun_at:
            left = (time.monotonic() - self.begun) / (done - self.begun_at) * (self.total - done)
            self._line(f"{self.name}: {where}, about {duration(left)} left")

    def fleet_ends(self, seconds: float) -> None:
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=self.total, where=f"done in {duration(seconds)}")
        else:
            self._line(f"{self.name}: done in {duration(seconds)}")

    def _line(self, text: str) -> None:
        self.told = time.monotonic()
        self.console.print(text, highlight=False, soft_wrap=True)
