"""Time that never runs backwards, whatever the clock does: a machine that slept, or was moved, may show any time."""

from __future__ import annotations

import time


def since(started: float) -> float:
    """Seconds since `time.perf_counter()` said `started`, never less than 0."""
    return max(0.0, time.perf_counter() - started)


class Stopwatch:
    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it was started. A clock that is set back starts it anew: who waits does not wait for ever."""
        now = time.monotonic()
        self.began = min(self.began, now)
        return now - self.began
