"""The result of a bench with its origin; on disk one JSON file."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from kenyon.bench.device import Ceilings, Count
from kenyon.errors import ResultsError
from kenyon.experiments.results import plain
from kenyon.utils.files import write_atomically

FORMAT = 1
SECOND = 2  # the first task with penalties: its cost has all parts that later tasks have

Piece = Literal["step", "importance", "evaluation"]
Sweep = Literal["pieces", "runs", "learners", "tasks"]


@dataclass(frozen=True)
class Spread:
    """The median of n values, with the quartiles around it."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


@dataclass(frozen=True)
class Against:
    """The measurement of the plain reference, alternating with the library's."""

    precision: str
    ms: Spread  # of one step or pass of one run
    ratio: Spread  # the time of all runs, one after another, over that of the library


@dataclass(frozen=True)
class Record:
    """The measurement of one piece of work of one ensemble of runs at one task."""

    benchmark: str
    method: str
    runs: int
    learners: int
    width: int
    task: int  # counted from 1
    piece: Piece
    sweeps: tuple[Sweep, ...]
    ms: Spread  # of one training step, importance pass or evaluation, of all runs together
    images: int | float  # processed by all runs in it
    least: Count  # operations and bytes, of all runs
    floor_ms: float
    bound: str  # which of the two decides the floor
    memory_mib: float | None  # peak so far; None if the system does not report it
    against: tuple[Against, ...] = ()

    @property
    def ms_per_run(self) -> float:
        return self.ms.median / self.runs

    @property
    def images_per_s(self) -> float:
        return 1000 * self.images / self.ms.median

    @property
    def share(self) -> float:
        """The floor over the time measured; 1 is the optimum."""
        return self.floor_ms / self.ms.median

    def as_dict(self) -> dict[str, Any]:
        derived = {"ms_per_run": self.ms_per_run, "images_per_s": self.images_per_s, "share_of_floor": self.share}
        return asdict(self) | {"derived": derived}


@dataclass
class BenchResult:
    """Records that grow while the bench runs; `complete` when nothing was cut short."""

    device: str
    kind: str  # cpu or cuda
    threads: int
    precision: str  # of the library's learners
    memory: str  # what memory_mib means
    versions: dict[str, str]
    started: str  # date and time, UTC
    quick: bool
    ceilings: Ceilings | None = None
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # benchmark/method/learners -> configuration
    records: list[Record] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what could not be measured, and why
    seconds: float = 0.0
    complete: bool = False

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(record.benchmark for record in self.records))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(record.method for record in self.records))

    def sweep(self, name: Sweep, benchmark: str, method: str, piece: Piece | None = None) -> list[Record]:
        """The records of a sweep in the order of its axis."""
        found = [
            r
            for r in self.records
            if name in r.sweeps and (r.benchmark, r.method) == (benchmark, method) and piece in (None, r.piece)
        ]
        return sorted(found, key=lambda r: (r.runs, r.learners, r.task))

    def as_dict(self) -> dict[str, Any]:
        body = {name: value for name, value in vars(self).items() if name not in ("ceilings", "records")}
        ceilings = None if self.ceilings is None else asdict(self.ceilings)
        records = [record.as_dict() for record in self.records]
        return plain({"format": FORMAT, **body, "ceilings": ceilings, "records": records})

    def save(self, path: Path) -> None:
        rounded = json.loads(json.dumps(self.as_dict(), allow_nan=False), parse_float=_six_digits)
        text = json.dumps(rounded, indent=1, allow_nan=False)
        write_atomically(path, (_compact(text) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        try:
            body = json.loads(path.read_text())
            if (form := body.pop("format")) != FORMAT:
                raise ResultsError(f"{path} has format {form}; this version of Kenyon reads {FORMAT}. Update Kenyon.")
            return msgspec.convert(body, cls)
        except (OSError, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
            raise ResultsError(f"{path} cannot be read as a bench result ({error}).") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ResultsError(f"{path} is not a bench result of Kenyon ({error!r}).") from error


def _six_digits(text: str) -> float:
    """Round a number to six significant digits, more than a clock resolves."""
    return float(f"{float(text):.6g}")


def _compact(text: str) -> str:
    """Put innermost objects and lists on one line: a median stands with its quartiles."""
    return re.sub(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])", lambda m: m[1] + re.sub(r"\s*\n\s*", " ", m[2]) + m[3], text)
