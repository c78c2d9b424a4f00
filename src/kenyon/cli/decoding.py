"""How the decoding of images shows itself: a bar with the time left on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, TaskID

from kenyon.clock import Stopwatch
from kenyon.report.tables import duration

LINE_EVERY = 10.0  # seconds between lines where there is no terminal


class Decoding:
    """Listens to `kenyon.data.reports`. Draws into bars that are there already: a terminal has room for one set."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.console, self.bars = console, bars
        self.tasks: dict[str, TaskID] = {}
        self.begun: dict[str, Stopwatch] = {}
        self.told = Stopwatch()

    def progress(self, what: str, done: int, total: int) -> None:
        if self.console.is_terminal:
            if what not in self.tasks:
                self.tasks[what] = self.bars.add_task(what, total=total, where="")
            self.bars.update(self.tasks[what], completed=done, where=f"{done:,} of {total:,}")
        elif what not in self.begun:
            self._line(f"{what}: {total:,} images, once and for all")
        elif done == total:
            self._line(f"{what}: done in {duration(self.begun[what].seconds)}")
        elif done and self.told.seconds > LINE_EVERY:
            left = self.begun[what].seconds / done * (total - done)
            self._line(f"{what}: {done:,} of {total:,}, about {duration(left)} left")
        self.begun.setdefault(what, Stopwatch())

    def notice(self, text: str) -> None:
        self.console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        self.told.start()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
