"""The unit of work of a sweep: a fleet, the order that a worker gets for it, and its outcome."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.store import identity_of
from kenyon.sweep.storage import FLEETS, MARKS, Storage

Key = tuple[str, str, int]  # of a run: benchmark, label and seed


@dataclass(frozen=True)
class Fleet:
    """Runs of one structure that train together, with an identity that is the same on every machine."""

    runs: tuple[RunSpec, ...]

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(identity_of(self.runs).encode()).hexdigest()[:12]

    @property
    def benchmark(self) -> str:
        return self.runs[0].config.benchmark

    @property
    def points(self) -> list[GridPoint]:
        return list({run.point.name: run.point for run in self.runs}.values())

    @staticmethod
    def key(run: RunSpec) -> Key:
        return run.config.benchmark, run.point.label, run.seed

    @property
    def keys(self) -> list[Key]:
        return [self.key(run) for run in self.runs]

    @property
    def folder(self) -> str:
        return f"{FLEETS}/{self.id}"

    @property
    def label(self) -> str:
        config, points, seeds = self.runs[0].config, self.points, sorted({run.seed for run in self.runs})
        name = points[0].label if len(points) == 1 else f"{config.method}, {len(points)} points"
        last = "" if len(seeds) == 1 else f" to {seeds[-1]}" if seeds[-1] - seeds[0] == len(seeds) - 1 else " ..."
        return f"{name} on {config.benchmark}, seed {seeds[0]}{last}"


@dataclass(frozen=True)
class Order:
    """All that a worker needs to train a fleet. It is small, and can be sent to any machine that sees the store."""

    store: str
    fleet: Fleet
    files: tuple[str, ...] = ()  # that define the user's own benchmarks
    data: Path | None = None
    keep_every: bool = False
    deterministic: bool = False
    over: bytes = b""  # contents of this fleet's lease that is known to have expired
    device: str = "cpu"  # chosen by the place


DONE, TAKEN, STOPPED, FAILED, DIED = "done", "taken", "stopped", "failed", "died"


Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


@dataclass(frozen=True)
class Outcome:
    """The end of the work on a fleet. Of a finished fleet it is left in the store, as its mark."""

    end: str
    why: str = ""  # why runs are missing
    without: list[tuple[str, int]] = field(default_factory=list)  # label and seed of runs that did not fit
    seconds: Seconds = 0.0  # of training, over all sessions
    device: str = ""

    def lost(self, runs: int) -> int:
        """Return how many of a fleet's runs are missing."""
        return len(self.without) if self.end == DONE else runs

    def save(self, storage: Storage, fleet: str) -> None:
        storage.write(f"{MARKS}/{fleet}", json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, storage: Storage, fleet: str) -> Outcome | None:
        """Return the mark of a fleet. None: there is none, or it cannot be read."""
        try:
            mark = msgspec.json.decode(storage.read(f"{MARKS}/{fleet}") or b"", type=cls)
        except (ValueError, RecursionError):  # those of msgspec are ValueErrors
            return None
        return mark if mark.end in (DONE, FAILED) else None
