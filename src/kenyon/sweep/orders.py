"""The unit of work: a fleet, what a worker needs to know to train it, and how it ended."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kenyon.experiments.grid import AnyCell, AnyPoint
from kenyon.experiments.states import identity_of
from kenyon.sweep.space import FLEETS, MARKS, Space

Key = tuple[str, str, int]  # of a run in a sweep: benchmark, label and seed


@dataclass(frozen=True)
class Fleet:
    """Runs of one structure that train together, on whatever machine, with an identity that all agree on."""

    cells: tuple[AnyCell, ...]

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(identity_of(self.cells).encode()).hexdigest()[:12]

    @property
    def benchmark(self) -> str:
        return self.cells[0].config.benchmark

    @property
    def points(self) -> list[AnyPoint]:
        return list({cell.point.name: cell.point for cell in self.cells}.values())

    @staticmethod
    def key(cell: AnyCell) -> Key:
        return cell.config.benchmark, cell.point.label, cell.seed

    @property
    def keys(self) -> list[Key]:
        return [self.key(cell) for cell in self.cells]

    @property
    def folder(self) -> str:
        return f"{FLEETS}/{self.id}"

    @property
    def label(self) -> str:
        config, points, seeds = self.cells[0].config, self.points, sorted({cell.seed for cell in self.cells})
        name = points[0].label if len(points) == 1 else f"{config.method}, {len(points)} points"
        last = "" if len(seeds) == 1 else f" to {seeds[-1]}" if seeds[-1] - seeds[0] == len(seeds) - 1 else " ..."
        return f"{name} on {config.benchmark}, seed {seeds[0]}{last}"


@dataclass(frozen=True)
class Order:
    """Small, and can be sent to any machine that has Kenyon and sees the store."""

    store: str
    fleet: Fleet
    files: tuple[str, ...] = ()  # that define the user's own benchmarks
    # Of images:
    data: Path | None = None
    keep_every: bool = False
    deterministic: bool = False
    # Of the moment:
    over: bytes = b""  # what a lease of this fleet says that is known to be over
    device: str = "cpu"  # the place knows


DONE, TAKEN, STOPPED, FAILED, DIED = "done", "taken", "stopped", "failed", "died"


@dataclass(frozen=True)
class Outcome:
    """How the work on a fleet ended. Of one that came to its end this is left in the store, as its mark."""

    end: str
    why: str = ""  # of what is missing
    without: list[tuple[str, int]] = field(default_factory=list)  # label and seed of runs that found no room
    seconds: float = 0.0  # of training, over all sessions
    device: str = ""

    def lost(self, runs: int) -> int:
        """How many of a fleet's runs are missing."""
        return len(self.without) if self.end == DONE else runs

    def save(self, space: Space, fleet: str) -> None:
        space.write(f"{MARKS}/{fleet}", json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, space: Space, fleet: str) -> Outcome | None:
        """None: there is none, or none that can be read."""
        try:
            body: dict[str, Any] = json.loads(space.read(f"{MARKS}/{fleet}") or b"")
            mark = cls(**body | {"without": [(str(label), int(seed)) for label, seed in body["without"]]})
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        told = isinstance(mark.why, str) and isinstance(mark.device, str) and mark.end in (DONE, FAILED)
        return mark if told and type(mark.seconds) in (int, float) and 0 <= mark.seconds < 1e15 else None
