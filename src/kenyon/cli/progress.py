"""Progress of training and image decoding: bars with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from kenyon.cli.stopping import StopAsked, stoppable
from kenyon.experiments.grid import RunSpec
from kenyon.experiments.runner import REFERENCE
from kenyon.report.tables import duration
from kenyon.training import Interrupted, Trainer
from kenyon.utils.clock import Stopwatch
from kenyon.utils.progress import reporting_to

if TYPE_CHECKING:
    from kenyon.rl.trainer import Agents

DECODING_LINE_EVERY = 10.0  # seconds between lines where there is no terminal


class Decoding:
    """Progress of image decoding, as a reporter. Draws into the bars of a run: a terminal has room for one set."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.console, self.bars = console, bars
        self.tasks: dict[str, TaskID] = {}
        self.begun: dict[str, Stopwatch] = {}
        self.shown_at = Stopwatch()

    def progress(self, what: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=total, where="")
            self.bars.update(self.tasks[what], completed=done, where=f"{done:,} of {total:,}")
        elif what not in self.begun:
            self._line(f"{what}: {total:,} images, once and for all")
        elif done == total:
            self._line(f"{what}: done in {duration(self.begun[what].seconds)}")
        elif done and self.shown_at.seconds > DECODING_LINE_EVERY:
            left = self.begun[what].seconds / done * (total - done)
            self._line(f"{what}: {done:,} of {total:,}, about {duration(left)} left")
        self.begun.setdefault(what, Stopwatch())

    def notice(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        self.shown_at.start()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


LINE_EVERY = 30.0  # seconds between lines where there is no terminal


class Shortened(TextColumn):
    """Text that is shortened on a narrow terminal, so that the time left is shown in full."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class FleetBar:
    """A bar for each job on a terminal, and elsewhere a line now and then, on standard error."""

    def __init__(self, console: Console, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop`: called before a job begins; if it returns True, Interrupted is raised."""
        self.console, self.stop = console, stop
        self.bars = Progress(
            TextColumn("{task.description:<14}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16),
            Shortened("{task.fields[where]}", markup=False, table_column=Column()),
            TimeElapsedColumn(Column(no_wrap=True)),
            TextColumn("left", markup=False, table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=console,
        )
        self.bar: TaskID | None = None
        self.name, self.total, self.shown_at = "", 0, Stopwatch()
        self.begun, self.begun_at = Stopwatch(), 0
        self.fallen: set[int] = set()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def begins(self, name: str, who: str, done: int, total: int) -> None:
        if self.stop():
            raise Interrupted
        self._take_away()
        self.name, self.total, self.fallen = name, total, set()
        self.begun, self.begun_at = Stopwatch(), done
        where = who + (f", continuing at {100 * done // total}%" if done else "")
        if self.console.is_terminal:
            self.bar = self.bars.add_task(name, total=total, completed=done, where=where)
        else:
            self._line(f"{name}: {where}")

    def goes_on(self, done: float, where: str) -> None:
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=done, where=where)
        elif self.shown_at.seconds > LINE_EVERY and done > self.begun_at:
            left = self.begun.seconds / (done - self.begun_at) * (self.total - done)
            self._line(f"{self.name}: {where}, about {duration(left)} left")

    def ends(self, where: str) -> None:
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=self.total, where=where)
            self.bar = None
        else:
            self._line(f"{self.name}: {where}")

    def _take_away(self) -> None:
        """Remove the bar of a job that did not finish."""
        if self.bar is not None:
            self.bars.remove_task(self.bar)
            self.bar = None

    def newly_fallen(self, diverged: Sequence[list[int] | None]) -> Iterator[tuple[int, list[int]]]:
        """Yield runs whose loss is not finite since the last call, with the place."""
        for run, place in enumerate(diverged):
            if place is not None and run not in self.fallen:
                self.fallen.add(run)
                yield run, place

    def warn(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        self.shown_at.start()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class RunProgress(FleetBar):
    """Progress of jobs of images and games."""

    runs: Sequence[RunSpec] = ()
    spans = ""  # numbers of runs and points, if there are several points

    def fleet_starts(self, runs: Sequence[RunSpec], done: int, total: int) -> None:
        self.runs, self.spans = runs, f"{_who(runs)}, " if _points(runs) > 1 else ""
        self.begins(_name(runs), _who(runs), done, total)

    def epoch_done(self, trainer: Trainer) -> None:
        at, epochs, stages = trainer.position, trainer.training.epochs, trainer.method.stages
        tasks = len(trainer.phases) // len(stages)
        stage = f"{stages[trainer.stage].name}, " if len(stages) > 1 and at.phase < len(trainer.phases) else ""
        task = min(trainer.tasks_before + 1, tasks)
        for run, place in self.newly_fallen(at.diverged):
            spec = self.runs[run]
            self.warn(
                f"{spec.point.label}: seed {spec.seed} stopped: its loss was no longer finite in "
                f"task {place[0] + 1}, epoch {place[1] + 1}. {trainer.why_diverged(run)}"
                f"{'The others go on.' if trainer.live else ''}"
            )
        self.goes_on(trainer.done, f"{self.spans}task {task}/{tasks}, {stage}epoch {at.epoch}/{epochs}")

    def update_done(self, agents: Agents) -> None:
        """Show speed and recent scores of games."""
        at, updates = agents.position, agents.ppo.updates
        done = at.phase * updates + at.epoch
        for run, place in self.newly_fallen(at.diverged):
            self.warn(
                f"{self.name}: seed {agents.seeds[run]} stopped: its loss was no longer finite in "
                f"{agents.games[place[0]]}, update {place[1] + 1}. {'The others go on.' if agents.live else ''}"
            )
        played = (done - self.begun_at) * agents.ppo.samples * len(agents.seeds)
        speed = played / max(self.begun.seconds, 1e-9)
        game = agents.games[min(at.phase, len(agents.games) - 1)]
        self.goes_on(done, f"{game} {at.epoch}/{updates}, {speed:,.0f} steps/s{_recent(agents)}")

    def fleet_ends(self, seconds: float) -> None:
        self.ends(f"{self.spans}done in {duration(seconds)}")

    def fleet_split(self, runs: Sequence[RunSpec], most: int) -> None:
        self._take_away()
        self.warn(
            f"{_name(runs)}: there is no memory for {len(runs)} runs at once. They are trained in "
            f"fleets of at most {most}; the numbers stay the same."
        )


def _points(runs: Sequence[RunSpec]) -> int:
    return len({run.point.name for run in runs})


def _name(runs: Sequence[RunSpec]) -> str:
    point = runs[0].point
    return point.label if _points(runs) == 1 else point.config.method


def _who(runs: Sequence[RunSpec]) -> str:
    if _points(runs) > 1:
        return f"{len(runs)} runs of {_points(runs)} points"
    seeds = f"seed {runs[0].seed}" if len(runs) == 1 else f"{len(runs)} seeds"
    unasked = runs[0].point.config.method == REFERENCE
    return seeds + (", to measure forward transfer by (--no-fwt leaves it out)" if unasked else "")


def _recent(agents: Agents) -> str:
    """Return the mean score of recent episodes, over the runs that finished any."""
    means = [float(np.mean(scores)) for scores in agents.recent if scores]
    return f", score {np.mean(means):.1f}" if means else ""


@contextmanager
def watched(console: Console, moment: str = "epoch") -> Iterator[tuple[RunProgress, StopAsked]]:
    """Show training, and end the program after saving when a signal asks to stop."""
    with (
        stoppable(console, moment) as stopping,
        RunProgress(console, lambda: stopping.terminated) as progress,
        reporting_to(Decoding(console, progress.bars)),
    ):
        yield progress, stopping
