"""How a command is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console


@contextmanager
def stop_on_signals(console: Console, moment: str = "epoch") -> Iterator[StopAsked]:
    """Ctrl-C or SIGTERM asks to stop after this epoch, or update; a second Ctrl-C stops at once."""
    asked = StopAsked(console, moment)
    before = {number: signal.signal(number, asked.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopAsked:
    def __init__(self, console: Console, moment: str) -> None:
        self.console, self.moment, self.asked = console, moment, False

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.console.print(f"Finishing this {self.moment}, then saving. Once more to stop at once.", style="yellow")

    def __call__(self) -> bool:
        return self.asked
