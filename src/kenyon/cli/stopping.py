"""Signals during training: how a user or a scheduler asks it to stop, and how soon it does.

Ctrl-C: the epoch is finished and saved. Twice: it ends at once. SIGTERM, which schedulers send half a minute or less
before they kill: the epoch is finished if that takes no longer than GRACE, otherwise training ends at once. At once
means that the last complete epoch in memory is saved (`kenyon.training.checkpoint`), and the program ends.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

from kenyon.cli.signals import INTERRUPTED, TERMINATED, Terminated
from kenyon.training import Interrupted

GRACE = 2.0  # seconds that an epoch may still take after SIGTERM


@contextmanager
def stop_on_signals(console: Console, moment: str = "epoch") -> Iterator[StopAsked]:
    """Handle signals inside the context. `moment`: what is finished first, an epoch or an update."""
    asked = StopAsked(console, moment)
    heard = {signal.SIGINT: asked.hear_interrupt, signal.SIGTERM: asked.hear_terminate}
    if hasattr(signal, "SIGALRM"):
        heard[signal.SIGALRM] = asked.hear_alarm
    before = {number: signal.signal(number, hear) for number, hear in heard.items()}
    try:
        yield asked
    finally:
        asked.no_hurry()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable(console: Console, moment: str = "epoch") -> Iterator[StopAsked]:
    """End the program with a message and the signal's exit code when training was stopped."""
    with stop_on_signals(console, moment) as stopping:
        try:
            yield stopping
        except Interrupted:
            console.print("Stopped, and saved. The same command continues from here.", style="yellow")
            sys.exit(stopping.code)
        except (KeyboardInterrupt, Terminated):
            console.print(
                f"Stopped at once. The same command continues from the last {moment} saved.", style="yellow"
            )
            sys.exit(stopping.code)


class StopAsked:
    """The `stop` function of a training: True after a signal."""

    def __init__(self, console: Console, moment: str = "epoch") -> None:
        self.console, self.moment = console, moment
        self.interrupts, self.terminated = 0, False
        self.stopping = False  # the epoch has ended, and its state is being saved

    @property
    def code(self) -> int:
        return TERMINATED if self.terminated else INTERRUPTED

    def hear_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        if self.stopping and self.interrupts == 2:
            self._print("Saving. Once more to stop without it.")
        elif self.interrupts > 1:
            raise KeyboardInterrupt
        else:
            self._print(f"Finishing this {self.moment}, then saving. Once more to stop at once.")

    def hear_terminate(self, number: int, frame: FrameType | None) -> None:
        if self.terminated:
            return  # some schedulers send it twice
        self.terminated = True
        self._print("Asked to terminate: saving.")
        if not self.stopping:
            if not hasattr(signal, "setitimer"):
                raise Terminated
            signal.setitimer(signal.ITIMER_REAL, GRACE)

    def hear_alarm(self, number: int, frame: FrameType | None) -> None:
        raise Terminated

    def __call__(self) -> bool:
        self.stopping = self.interrupts > 0 or self.terminated
        if self.stopping:
            self.no_hurry()
        return self.stopping

    def no_hurry(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _print(self, text: str) -> None:
        self.console.print(text, style="yellow")
