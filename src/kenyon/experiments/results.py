"""What a point of a grid is called: in tables, and as a folder.

What is kept of runs, whatever they learned: the part that results of images and scores of games have in common.

Results with their origin: what a method reached on a benchmark, run by run.

On disk a result is one small JSON file, `OUT/BENCHMARK/METHOD/result.json`, and for a point of a grid
`OUT/BENCHMARK/METHOD/lambda_sp=1000/result.json`. Accuracies are in per cent; numbers that were not measured are
null.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.result_form import check_result, out_of_place
from kenyon.metrics import (
    Array,
    Summary,
    average_accuracy,
    backward_transfer,
    expertise,
    forward_transfer,
    learning_accuracy,
    rounded,
)
from kenyon.utils.files import write_atomically
from kenyon.utils.formats import WEIGHTS, FileSum, Formats, check_json, has_checksum, with_checksum
from kenyon.utils.text import counted

if TYPE_CHECKING:
    from pandas import DataFrame


def point_name(point: Mapping[str, Any]) -> str:
    """`lambda_sp=1000,lambda_af=1e-08`: a point's own values, as `--set` takes them. Empty without a grid."""
    return ",".join(f"{name}={value_text(value)}" for name, value in point.items())


def point_label(method: str, point: Mapping[str, Any]) -> str:
    """`caf-ewc[lambda_sp=1000,lambda_af=1e-08]`, or the method's name alone without a grid."""
    return f"{method}[{point_name(point)}]" if point else method


def value_text(value: Any) -> str:
    """A value so that reading it gives the same one: 1000 and 1000.0 are one value and have one text."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


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

    @abstractmethod
    def measurements(self) -> Iterator[dict[str, Any]]:
        """Yield seed, after_task (number of learned tasks), task (from 1), task_name and value of complete runs."""

    def to_pandas(self) -> DataFrame:
        """Return all accuracies or scores as a tidy DataFrame; see `kenyon.experiments.tidy.tidy_rows`."""
        from kenyon.experiments.tidy import to_pandas

        return to_pandas([self])

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


FORMATS = Formats("result", 1)


@dataclass(frozen=True)
class Run:
    """One seed."""

    seed: int
    accuracy: list[list[float]]  # (phases, T): row t after phase t; joint training has one row
    own_accuracy: list[list[float]]  # (T, K) of each learner alone, in the end
    cosine: list[float]  # (T,) diversity of the learners' predictions, in the end
    euclidean: list[float]
    tasks: list[str]  # names, in the order in which they were learned
    diverged: list[int] | None = None  # [task, epoch] (from 0) at which the loss was no longer finite

    @property
    def matrix(self) -> Array:
        return np.array(self.accuracy, dtype=float)

    @property
    def complete(self) -> bool:
        return self.diverged is None

    @property
    def numbers(self) -> bytes:
        """All that is known of it, the same bytes for the same run."""
        return json.dumps(plain(asdict(self)), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """Of its numbers: a run that was trained anew, and came out otherwise, has another."""
        return hashlib.sha256(self.numbers).hexdigest()[:16]


@dataclass(frozen=True, repr=False)
class Result(Kept[Run, FleetOrigin]):
    """What a method reached on a benchmark: every run's accuracy matrix, and where it comes from.

    Measures are a `Summary`, mean, standard error and the value of every run, or None where nothing can be said.
    """

    FILE, WHAT, FORMATS = "result.json", "a result", FORMATS

    # Accuracy of each task learned from a random start, by seed, in the order of that seed's tasks.
    alone: dict[int, list[float]] = field(default_factory=dict)

    def measurements(self) -> Iterator[dict[str, Any]]:
        for run in self.complete_runs:
            rows = run.matrix
            for after, row in enumerate(rows, 1 + len(run.tasks) - len(rows)):  # one row after joint training
                for task, (name, accuracy) in enumerate(zip(run.tasks, row.tolist(), strict=True), 1):
                    if math.isfinite(accuracy):
                        place = {"seed": run.seed, "after_task": after, "task": task, "task_name": name}
                        yield place | {"accuracy": accuracy}

    @property
    def held_out(self) -> bool:
        """Whether it is of a search: its accuracies are of training data that was held out, not of test data."""
        return "search" in self.config

    @property
    def title(self) -> str:
        """The benchmark, and of a search its protocol: what may stand in one table has one title."""
        return self.benchmark + (f" ({self.config['search']['name']} search)" if self.held_out else "")

    def _said(self) -> list[str]:
        measures = {"AAC": self.aac, "BWT": self.bwt, "FWT": self.fwt}
        return [f"{name} {measure.text()}" for name, measure in measures.items() if measure is not None]

    def told(self) -> dict[str, Any]:
        return super().told() | ({"search": self.config["search"]} if self.held_out else {})

    @property
    def accuracy(self) -> Array:
        """Accuracy matrices of the complete runs, (R, phases, T)."""
        return np.array([run.accuracy for run in self.complete_runs], dtype=float)

    @property
    def aac(self) -> Summary | None:
        """Average accuracy: of all tasks in the end, in per cent."""
        return Summary.of([average_accuracy(run.matrix) for run in self.complete_runs])

    @property
    def bwt(self) -> Summary | None:
        """Backward transfer: what learning on did to the tasks before, in per cent."""
        return Summary.of([backward_transfer(run.matrix) for run in self._sequential])

    @property
    def fwt(self) -> Summary | None:
        """Forward transfer: a task before it is learned, against a random start; needs the reference `alone`."""
        runs = [run for run in self._sequential if run.seed in self.alone]
        return Summary.of([forward_transfer(run.matrix, np.array(self.alone[run.seed])) for run in runs])

    @property
    def learned(self) -> Summary | None:
        """Accuracy of every task just after it was learned: how well the method still learns."""
        return Summary.of([learning_accuracy(run.matrix) for run in self._sequential])

    @property
    def cosine(self) -> Summary | None:
        """Cosine distance between the learners' predictions: their diversity."""
        return Summary.of([float(np.mean(run.cosine)) for run in self.complete_runs])

    @property
    def euclidean(self) -> Summary | None:
        """Euclidean distance between the learners' predictions."""
        return Summary.of([float(np.mean(run.euclidean)) for run in self.complete_runs])

    @property
    def expertise(self) -> Array:
        """Each learner's accuracy minus the mean of the learners, in the end: (R, T, K)."""
        return np.array([expertise(np.array(run.own_accuracy)) for run in self.complete_runs])

    @property
    def _sequential(self) -> list[Run]:
        return [run for run in self.complete_runs if len(run.accuracy) == len(run.tasks)]

    def summary(self) -> dict[str, Any]:
        """All measures as plain numbers, as they stand in result.json."""
        names = ("aac", "fwt", "bwt", "learned", "cosine", "euclidean")
        return {name: rounded(getattr(self, name)) for name in names} | {"seconds": round(self.seconds, 2)}

    def to_json(self) -> str:
        """The text of result.json."""
        body = {
            "format": FORMATS.present,
            "config": self.config,
            **({"point": self.point} if self.point else {}),
            "parameters": self.parameters,
            "summary": self.summary(),
            "runs": [asdict(run) for run in self.runs],
            "alone": {str(seed): values for seed, values in self.alone.items()},
            "fleets": [{k: v for k, v in asdict(fleet).items() if v is not None} for fleet in self.fleets],
            **self.integrity(),
        }
        return checksummed_text(body)

    @classmethod
    def of_body(cls, body: Any, path: Path) -> Result:
        try:
            body = FORMATS.read(body, path)
            result = cls(
                body["config"],
                body["parameters"],
                [Run(**_with_nan(run)) for run in body["runs"]],
                [FleetOrigin(**fleet) for fleet in body["fleets"]],
                {int(seed): _restored(values) for seed, values in body.get("alone", {}).items()},
                point=body.get("point", {}),
                **integrity_of(body),
            )
            check_result(result)
            return result
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResultsError(
                f"{path} is not a Kenyon result: {out_of_place(error)}. Move it away to run anew."
            ) from error


def plain(value: Any) -> Any:
    """The same without NaN or infinity, which JSON does not have: null instead."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def checksummed_text(body: dict[str, Any]) -> str:
    """A JSON object as its file has it, with a checksum: NaN as null, innermost lists on one line."""
    return compact(json.dumps(with_checksum(plain(body)), indent=1, allow_nan=False))


def _with_nan(run: dict[str, Any]) -> dict[str, Any]:
    lists = ("accuracy", "own_accuracy", "cosine", "euclidean")
    return {name: _restored(value) if name in lists else value for name, value in run.items()}


def _restored(value: Any) -> Any:
    """Null back to NaN."""
    if not isinstance(value, list):
        return math.nan if value is None else value
    if {*map(type, value)} == {float}:  # a row, as nearly all are
        return value
    return [_restored(v) for v in value]


def compact(text: str) -> str:
    """Put innermost lists on one line: a matrix reads as rows. Of a text that was made with an indent: its lines end
    within no string.
    """
    import re

    def row(found: re.Match[str]) -> str:
        return "[" + re.sub(r"\s*\n\s*", " ", found[1]) + "]"

    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s*\]", row, text)
