"""How a long run shows itself: bars with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kenyon.clock import Stopwatch
from kenyon.experiments import Cell
from kenyon.report.tables import duration
from kenyon.train import Interrupted, Trainer

LINE_EVERY = 30.0  # seconds between lines where there is no terminal


class RunProgress:
    """Draws on standard error, so that standard output holds results alone."""

    def __init__(self, console: Console, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop`: asked before a fleet begins, whose first epoch may be long."""
        self.console, self.stop = console, stop
        self.bars = Progress(
            TextColumn("{task.description:<14}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar: TaskID | None = None
        self.cells: Sequence[Cell] = ()
        self.spans = ""  # how many runs and points, where there are several points
        self.name, self.total, self.told = "", 0, Stopwatch()
        self.begun, self.begun_at = Stopwatch(), 0
        self.fallen: set[int] = set()

    def __enter__(self) -> RunProgress:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def fleet_starts(self, cells: Sequence[Cell], done: int, total: int) -> None:
        if self.stop():
            raise Interrupted
        self.cells, self.name, self.total, self.fallen = cells, _name(cells), total, set()
        self.spans = f"{_who(cells)}, " if _points(cells) > 1 else ""
        self.begun, self.begun_at = Stopwatch(), done
        resumed = f", continuing at {100 * done // total}%" if done else ""
        if self.console.is_terminal:
            self.bar = self.bars.add_task(self.name, total=total, completed=done, where=f"{_who(cells)}{resumed}")
        else:
            self._line(f"{self.name}: {_who(cells)}{resumed}")

    def epoch_done(self, trainer: Trainer) -> None:
        at, epochs, stages = trainer.position, trainer.training.epochs, trainer.method.stages
        tasks = len(trainer.phases) // len(stages)
        done = min(at.phase * epochs + at.epoch, self.total)
        stage = f"{stages[trainer.stage].name}, " if len(stages) > 1 and done < self.total else ""
        task = min(trainer.tasks_before + 1, tasks)
        where = f"{self.spans}task {task}/{tasks}, {stage}epoch {at.epoch}/{epochs}"
        for run, place in enumerate(at.diverged):
            if place is not None and run not in self.fallen:
                self.fallen.add(run)
                name = escape(self.cells[run].point.label)
                self.console.print(
                    f"[yellow]{name}: seed {self.cells[run].seed} stopped: its loss was no longer finite in "
                    f"task {place[0] + 1}, epoch {place[1] + 1}. {'The others go on.' if trainer.live else ''}[/]",
                    soft_wrap=True,
                )
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=done, where=where)
        elif self.told.seconds > LINE_EVERY and done > self.begun_at:
            left = self.begun.seconds / (done - self.begun_at) * (self.total - done)
            self._line(f"{self.name}: {where}, about {duration(left)} left")

    def fleet_ends(self, seconds: float) -> None:
        if self.console.is_terminal and self.bar is not None:
            self.bars.update(self.bar, completed=self.total, where=f"{self.spans}done in {duration(seconds)}")
            self.bar = None
        else:
            self._line(f"{self.name}: {self.spans}done in {duration(seconds)}")

    def fleet_split(self, cells: Sequence[Cell], most: int) -> None:
        if self.bar is not None:  # of the training that broke off
            self.bars.remove_task(self.bar)
            self.bar = None
        self.console.print(
            f"[yellow]{escape(_name(cells))}: there is no memory for {len(cells)} runs at once. They are trained in "
            f"fleets of at most {most}; the numbers stay the same.[/]",
            soft_wrap=True,
        )

    def _line(self, text: str) -> None:
        self.told.start()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _points(cells: Sequence[Cell]) -> int:
    return len({cell.point.name for cell in cells})


def _name(cells: Sequence[Cell]) -> str:
    point = cells[0].point
    return point.label if _points(cells) == 1 else point.config.method


def _who(cells: Sequence[Cell]) -> str:
    if _points(cells) > 1:
        return f"{len(cells)} runs of {_points(cells)} points"
    return f"seed {cells[0].seed}" if len(cells) == 1 else f"{len(cells)} seeds"
