"""What a bench found, with its origin. On disk one JSON file."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kenyon.bench.limits import Ceilings, Count
from kenyon.bench.plan import Spread, Sweep
from kenyon.bench.subject import Piece
from kenyon.errors import ResultsError
from kenyon.experiments.results import plain
from kenyon.utils.files import write_atomically

FORMAT = 1


@dataclass(frozen=True)
class Against:
    """The plain reference, measured in turns with the library."""

    precision: str
    ms: Spread  # of one step or pass of one run
    ratio: Spread  # the time of all runs, plainly one after another, over that of the library


@dataclass(frozen=True)
class Record:
    """One piece of work of one fleet at one task."""

    benchmark: str
    method: str
    runs: int
    learners: int
    width: int
    task: int  # counted from 1
    piece: Piece
    sweeps: tuple[Sweep, ...]
    ms: Spread  # of one training step, importance pass or evaluation, of all runs together
    images: float  # seen by all runs in it
    least: Count  # operations and bytes, of all runs
    floor_ms: float
    bound: str  # which of the two decides the floor
    memory_mib: float  # at most in use by the fleet so far
    against: tuple[Against, ...] = ()

    @property
    def ms_per_run(self) -> float:
        return self.ms.median / self.runs

    @property
    def images_per_s(self) -> float:
        return 1000 * self.images / self.ms.median

    @property
    def share(self) -> float:
        """Of the time measured, how much the floor is: 1 could not be faster."""
        return self.floor_ms / self.ms.median

    def as_dict(self) -> dict[str, Any]:
        derived = {"ms_per_run": self.ms_per_run, "images_per_s": self.images_per_s, "share_of_floor": self.share}
        return asdict(self) | {"derived": derived}

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Record:
        given = {name: value for name, value in body.items() if name != "derived"}
        against = tuple(Against(a["precision"], Spread(**a["ms"]), Spread(**a["ratio"])) for a in given["against"])
        memory = given["memory_mib"]
        return cls(
            **given
            | {
                "sweeps": tuple(given["sweeps"]),
                "ms": Spread(**given["ms"]),
                "least": Count(**given["least"]),
                "memory_mib": float("nan") if memory is None else memory,
                "against": against,
            }
        )


@dataclass
class BenchResult:
    """Grows while the bench runs; `complete` when nothing was cut short."""

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
        text = json.dumps(_rounded(self.as_dict()), indent=1, allow_nan=False)
        write_atomically(path, (_compact(text) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> BenchResult:
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise ResultsError(f"{path} cannot be read as a bench result ({error}).") from error
        try:
            if (form := body.pop("format")) != FORMAT:
                raise ResultsError(f"{path} has format {form}; this version of Kenyon reads {FORMAT}. Update Kenyon.")
            ceilings, records = body.pop("ceilings"), body.pop("records")
            return cls(
                **body,
                ceilings=None if ceilings is None else Ceilings(**ceilings),
                records=[Record.from_dict(record) for record in records],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ResultsError(f"{path} is not a bench result of Kenyon ({error!r}).") from error


def _rounded(value: Any) -> Any:
    """Six digits say more than a clock knows."""
    if isinstance(value, dict):
        return {name: _rounded(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _compact(text: str) -> str:
    """Put innermost objects and lists on one line: a median stands with its quartiles."""
    return re.sub(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])", lambda m: m[1] + re.sub(r"\s*\n\s*", " ", m[2]) + m[3], text)
