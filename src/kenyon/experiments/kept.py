"""What is kept of runs, whatever they learned: the part that results of images and scores of games have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from kenyon.checksums import WEIGHTS, FileSum, check_json, has_checksum
from kenyon.errors import ResultsError
from kenyon.experiments.labels import point_label
from kenyon.files import write_atomically
from kenyon.formats import Formats
from kenyon.words import counted


class OneRun(Protocol):
    """One seed."""

    @property
    def seed(self) -> int: ...

    @property
    def complete(self) -> bool:
        """Whether its loss stayed finite."""
        ...


@dataclass(frozen=True)
class FleetOrigin:
    """Where some of the runs come from."""

    seeds: list[int]
    seconds: float  # all of them together; their share when runs of other points trained beside them
    device: str
    precision: str
    versions: dict[str, str]
    finished: str  # date and time, UTC
    together: int | None = None  # how many runs trained together, where some were of other points
    deterministic: bool | None = None  # True: with PyTorch's deterministic algorithms
    sharing: int | None = None  # other trainings that shared the device meanwhile: seconds say nothing of its speed


def seed_of(weights: str) -> int:
    """The seed of a run, from the name of a file of its weights."""
    found = WEIGHTS.fullmatch(weights)
    assert found is not None
    return int(found[1])


R = TypeVar("R", bound=OneRun)
F = TypeVar("F", bound=FleetOrigin)


@dataclass(frozen=True, repr=False)
class Kept(ABC, Generic[R, F]):
    """The runs of one configuration."""

    FILE: ClassVar[str]  # what it is called on disk
    WHAT: ClassVar[str]  # in messages
    FORMATS: ClassVar[Formats]

    config: dict[str, Any]
    parameters: int  # of one run, heads included
    runs: list[R]
    fleets: list[F]
    # Of a point of a grid: its values of the settings that vary.
    point: dict[str, Any] = field(default_factory=dict, kw_only=True)
    # Files of weights beside it, by name. Those that earlier versions wrote are not among them.
    weights: dict[str, FileSum] = field(default_factory=dict, kw_only=True)
    # Seeds whose numbers were read from a file without a checksum: nobody can say whether they had changed by then.
    unsealed: list[int] = field(default_factory=list, kw_only=True)

    @property
    def label(self) -> str:
        """The method, and of a point of a grid its values: `ewc[lambda_sp=1000]`."""
        return point_label(self.method, self.point)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def benchmark(self) -> str:
        return str(self.config["benchmark"])

    @property
    def complete_runs(self) -> list[R]:
        """Those whose loss stayed finite."""
        return [run for run in self.runs if run.complete]

    def __repr__(self) -> str:
        """In a line: who, how many runs, what came out. All of it is `to_json()`."""
        lost = len(self.runs) - len(self.complete_runs)
        runs = counted(len(self.runs), "run") + (f" ({lost} diverged)" if lost else "")
        return f"<{type(self).__name__} {self.benchmark} {self.label}: {', '.join([runs, *self._said()])}>"

    def _said(self) -> list[str]:
        """Measures of all runs together, as words."""
        return []

    def told(self) -> dict[str, Any]:
        """What a program is told beside the measures."""
        return {
            "seeds": [run.seed for run in self.complete_runs],
            "diverged": [run.seed for run in self.runs if not run.complete],
            "parameters": self.parameters,
            **({"method": self.method, "point": self.point} if self.point else {}),
            **({"unsealed": self.unsealed} if self.unsealed else {}),
        }

    @property
    def seconds(self) -> float:
        """Training time of all runs together."""
        return sum(fleet.seconds for fleet in self.fleets)

    def restricted(self, seeds: Sequence[int]) -> Self:
        """Only the runs of these seeds."""
        return replace(
            self,
            runs=[run for run in self.runs if run.seed in seeds],
            fleets=[fleet for fleet in self.fleets if set(fleet.seeds) & set(seeds)],
            weights={name: file for name, file in self.weights.items() if seed_of(name) in seeds},
            unsealed=[seed for seed in self.unsealed if seed in seeds],
        )

    def with_more(self, other: Self) -> Self:
        """Together with the runs of another. What is here stays: finished is finished."""
        there = {run.seed for run in self.runs}
        new = [run for run in other.runs if run.seed not in there]
        if not new:
            return self
        runs = sorted([*self.runs, *new], key=lambda run: run.seed)
        more = other.restricted([run.seed for run in new])
        return replace(
            self,
            runs=runs,
            fleets=[*self.fleets, *other.fleets],
            weights={**self.weights, **more.weights},
            unsealed=sorted({*self.unsealed, *more.unsealed}),
        )

    def integrity(self) -> dict[str, Any]:
        """Entries of its file about other files, and about where its numbers come from."""
        return {
            "weights": {name: asdict(file) for name, file in sorted(self.weights.items())},
            **({"unsealed": self.unsealed} if self.unsealed else {}),
        }

    @abstractmethod
    def to_json(self) -> str:
        """The text of its file."""

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        write_atomically(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read its file, and check its checksum and its form. Files of earlier versions have no checksum."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(body, dict):
                cls.FORMATS.refuse_newer(body.get("format"), path)
                check_json(body, path, needed="weights" in body)
        except FileNotFoundError:
            raise ResultsError(f"There is no result at {path}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ResultsError(f"{path} cannot be read as {cls.WHAT} ({error}). Move it away to run anew.") from error
        return cls.of_body(body, path)

    @classmethod
    @abstractmethod
    def of_body(cls, body: Any, path: Path) -> Self:
        """Make it of the contents of its file, and check their form."""


def integrity_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `weights` and `unsealed` from the contents of a file. Raises what contents of another form may."""
    if not has_checksum(body):
        return {"unsealed": [run["seed"] for run in body["runs"]]}
    weights = {name: FileSum(**file) for name, file in body["weights"].items()}
    return {"weights": weights, "unsealed": body.get("unsealed", [])}
