"""Durations that are never negative: the clock of a machine that was suspended or migrated may step backwards."""

from __future__ import annotations

import time


def since(started: float) -> float:
    """Return the seconds since `time.perf_counter()` returned `started`, at least 0."""
    return max(0.0, time.perf_counter() - started)


class Stopwatch:
    """A monotonic stopwatch that restarts when the clock is set back, so that no caller waits for ever."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        now = time.monotonic()
        self.began = min(self.began, now)
        return now - self.began
