"""What a log is, and what it is told of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Moment(NamedTuple):
    """After so many epochs of the run, all tasks together; `tested`: and after the tests that follow a task."""

    epoch: int
    tested: bool


@dataclass(frozen=True)
class LoggedRun:
    out: Path  # the folder of results
    path: Path  # of the run, below a folder of the log's own
    name: str
    group: str  # what it shares with the same configuration's other seeds
    config: dict[str, Any]
    anew: bool  # it starts at its beginning, whatever an older log says


class Log(Protocol):
    def add(self, moment: Moment, values: dict[str, float]) -> None:
        """Moments come in their order."""

    def close(self, *, finished: bool) -> None: ...
