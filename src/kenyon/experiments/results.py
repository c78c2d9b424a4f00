"""Results and their origin: what a method reaches on a benchmark, run by run.

On disk a result is one small JSON file, with the weights of its runs in the same folder:
`OUT/BENCHMARK/METHOD/result.json` for images, `OUT/SUITE/METHOD/scores.json` for games, and for a point of a grid
`.../METHOD/lambda_sp=1000/result.json`. Accuracies are in per cent, scores of games are raw; numbers that were not
measured are null.

`Result` and `GameResult` share configuration, origin, weights and integrity (`ResultBase`), and add their measures.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import msgspec
import numpy as np
from msgspec import Meta

from kenyon.errors import ResultsError
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

# ------------------------------------------------------------------------------------------------- grid points


def point_name(point: Mapping[str, Any]) -> str:
    """Return the folder of a grid point, `lambda_sp=1000,lambda_af=1e-08`; empty without a grid."""
    return ",".join(f"{name}={value_text(value)}" for name, value in point.items())


def point_label(method: str, point: Mapping[str, Any]) -> str:
    """Return `caf-ewc[lambda_sp=1000,lambda_af=1e-08]`, or the method's name without a grid."""
    return f"{method}[{point_name(point)}]" if point else method


def value_text(value: Any) -> str:
    """Return a text that reads back as the same value; 1000 and 1000.0 have one text."""
    if type(value) is bool:
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


# ------------------------------------------------------------------------------------------------- the form of a file

Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Number = Annotated[float, Meta(ge=-1e15, le=1e15)] | None  # null: not measured
Percent = Annotated[float, Meta(ge=0, le=100)] | None
Pair = Annotated[list[Whole], Meta(min_length=2, max_length=2)]
Setting = str | bool | Whole | Annotated[float, Meta(ge=-1e300, le=1e300)]
Settings = dict[str, Setting]


class _ConfigForm(msgspec.Struct):
    benchmark: str
    method: str
    training: Settings
    architecture: Settings
    hyper: Settings
    search: Settings = {}


class _ImageConfigForm(_ConfigForm, kw_only=True):
    tasks: Annotated[int, Meta(ge=1, le=2**62)]


class _GameConfigForm(_ConfigForm, kw_only=True):
    games: Annotated[list[str], Meta(min_length=1)]


class _RunForm(msgspec.Struct, forbid_unknown_fields=True):
    seed: Whole
    accuracy: list[list[Percent]]
    own_accuracy: list[list[Number]]
    cosine: list[Number]
    euclidean: list[Number]
    tasks: list[str]
    diverged: Pair | None = None


class _GameRunForm(msgspec.Struct, forbid_unknown_fields=True):
    seed: Whole
    scores: list[list[Number]]
    diverged: Pair | None


class _ResultForm(msgspec.Struct):
    parameters: Whole
    fleets: list[FleetOrigin]
    point: Settings = {}
    weights: dict[Annotated[str, Meta(pattern=f"^{WEIGHTS.pattern}$")], FileSum] = {}
    unsealed: list[Whole] = []


class _ImageResultForm(_ResultForm, kw_only=True):
    config: _ImageConfigForm
    runs: list[_RunForm]
    alone: dict[str, list[Number]] = {}


class _GameResultForm(_ResultForm, kw_only=True):
    config: _GameConfigForm
    runs: list[_GameRunForm]
    moments: list[Pair]


def _need(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)


def _need_rows(rows: list[list[float]], width: int, what: str) -> None:
    _need(all(len(row) == width for row in rows), f"{what} is not rows of {width} numbers")


def _restored(row: list[Any]) -> list[float]:
    """Null back to NaN."""
    return [math.nan if value is None else value for value in row] if None in row else row


def _rows(rows: list[list[Any]]) -> list[list[float]]:
    return list(map(_restored, rows))


# ------------------------------------------------------------------------------------------------- both kinds


@dataclass(frozen=True)
class FleetOrigin:
    """The origin of runs that trained together."""

    seeds: list[int]
    seconds: float  # of all of them; their share when runs of other points trained with them
    device: str
    precision: str
    versions: dict[str, str]
    finished: str  # date and time, UTC
    together: int | None = None  # number of runs that trained together, where some are of other points
    deterministic: bool | None = None  # True: with PyTorch's deterministic algorithms
    sharing: int | None = None  # other trainings on the device at that time: `seconds` is no measure of its speed
    steps_per_second: float | None = None  # of games, all runs together, all work included

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < 1e15:
            raise ValueError(f"seconds of a fleet are {self.seconds:g}")


def seed_of(weights: str) -> int:
    """Return the seed in the name of a file of weights."""
    found = WEIGHTS.fullmatch(weights)
    assert found is not None
    return int(found[1])


@dataclass(frozen=True, repr=False)
class ResultBase(ABC):
    """The finished runs of one configuration, with their origin."""

    FILE: ClassVar[str]  # name on disk
    WHAT: ClassVar[str]  # name in messages
    FORMATS: ClassVar[Formats]
    FORM: ClassVar[type[msgspec.Struct]]

    config: dict[str, Any]
    parameters: int  # of one run, heads included
    runs: list[Any]
    fleets: list[FleetOrigin]
    # Values of the settings that vary, for a point of a grid.
    point: dict[str, Any] = field(default_factory=dict, kw_only=True)
    # Files of weights in the same folder, by name. Version 0.1.0 and before list none.
    weights: dict[str, FileSum] = field(default_factory=dict, kw_only=True)
    # Seeds whose numbers come from a file without a checksum: changes before it was read cannot be noticed.
    unsealed: list[int] = field(default_factory=list, kw_only=True)

    @property
    def label(self) -> str:
        """The method, and for a point of a grid its values: `ewc[lambda_sp=1000]`."""
        return point_label(self.method, self.point)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def benchmark(self) -> str:
        return str(self.config["benchmark"])

    @property
    def complete_runs(self) -> list[Any]:
        """Runs whose loss stayed finite."""
        return [run for run in self.runs if run.complete]

    def __repr__(self) -> str:
        lost = len(self.runs) - len(self.complete_runs)
        runs = counted(len(self.runs), "run") + (f" ({lost} diverged)" if lost else "")
        return f"<{type(self).__name__} {self.benchmark} {self.label}: {', '.join([runs, *self._headline()])}>"

    def _headline(self) -> list[str]:
        """Measures over all runs, for `repr`."""
        return []

    def told(self) -> dict[str, Any]:
        """Return seeds, parameters and the grid point for JSON output."""
        return {
            "seeds": [run.seed for run in self.complete_runs],
            "diverged": [run.seed for run in self.runs if not run.complete],
            "parameters": self.parameters,
            **({"method": self.method, "point": self.point} if self.point else {}),
            **({"unsealed": self.unsealed} if self.unsealed else {}),
        }

    @property
    def seconds(self) -> float:
        """Training time of all runs."""
        return sum(fleet.seconds for fleet in self.fleets)

    def restricted(self, seeds: Sequence[int]) -> Self:
        """Return the runs of these seeds only."""
        return replace(
            self,
            runs=[run for run in self.runs if run.seed in seeds],
            fleets=[fleet for fleet in self.fleets if set(fleet.seeds) & set(seeds)],
            weights={name: file for name, file in self.weights.items() if seed_of(name) in seeds},
            unsealed=[seed for seed in self.unsealed if seed in seeds],
        )

    def with_more(self, other: Self) -> Self:
        """Return the union with the runs of another result. Of a seed in both, the run here is kept."""
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
        """Return the entries of the file about weights and about runs without a checksum."""
        return {
            "weights": {name: asdict(file) for name, file in sorted(self.weights.items())},
            **({"unsealed": self.unsealed} if self.unsealed else {}),
        }

    @abstractmethod
    def measurements(self) -> Iterator[dict[str, Any]]:
        """Yield seed, after_task (number of learned tasks), task (from 1), task_name and value of complete runs."""

    def to_pandas(self) -> DataFrame:
        """Return all accuracies or scores as a tidy DataFrame; see `kenyon.experiments.tidy.tidy_rows`."""
        from kenyon.experiments.tidy import to_pandas

        return to_pandas([self])

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return all measures as plain numbers."""

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """Return the runs, and what their measures need, as the file has them."""

    def to_json(self) -> str:
        """Return the text of the file."""
        body = {
            "format": self.FORMATS.present,
            "config": self.config,
            **({"point": self.point} if self.point else {}),
            "parameters": self.parameters,
            "summary": self.summary(),
            **self._numbers(),
            "fleets": [{k: v for k, v in asdict(fleet).items() if v is not None} for fleet in self.fleets],
            **self.integrity(),
        }
        return checksummed_text(body)

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        write_atomically(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file, and check its checksum and form. Files of version 0.1.0 and before have no checksum."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if type(body) is dict:
                cls.FORMATS.refuse_newer(body.get("format"), path)
                check_json(body, path, needed="weights" in body)
        except FileNotFoundError:
            raise ResultsError(f"There is no result at {path}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ResultsError(
                f"{path} cannot be read as {cls.WHAT} ({error}). Move it away to run again."
            ) from error
        return cls.of_body(body, path)

    @classmethod
    def of_body(cls, body: Any, path: Path) -> Self:
        """Build a result from the contents of a file, and check their form."""
        try:
            body = cls.FORMATS.read(body, path)
            form: Any = msgspec.convert(body, cls.FORM)
            unsealed = form.unsealed if has_checksum(body) else [run.seed for run in form.runs]
            weights = form.weights if has_checksum(body) else {}
            _need(not has_checksum(body) or "weights" in body, "it has no weights")
            for part, name in (("training", "epochs"), ("architecture", "learners")):
                _need(type(body["config"][part].get(name)) is int, f"config.{part}.{name} is no whole number")
            shared = {"point": body.get("point", {}), "weights": weights, "unsealed": unsealed}
            result = cls._of_form(form, body["config"], shared)
            _need(len({run.seed for run in result.runs}) == len(result.runs), "a seed occurs twice")
            _need({run.seed for run in result.runs}.issuperset(unsealed), "unsealed names other seeds")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            what = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
            raise ResultsError(f"{path} cannot be read as {cls.WHAT}: {what}. Move it away to run again.") from error
        return result

    @classmethod
    @abstractmethod
    def _of_form(cls, form: Any, config: dict[str, Any], shared: dict[str, Any]) -> Self:
        """Build a result from a decoded file, and check what runs have in common."""


# ------------------------------------------------------------------------------------------------- images


@dataclass(frozen=True)
class Run:
    """One seed."""

    seed: int
    accuracy: list[list[float]]  # (phases, T): row t after phase t; joint training has one row
    own_accuracy: list[list[float]]  # (T, K) of each learner alone, in the end
    cosine: list[float]  # (T,) diversity of the learners' predictions, in the end
    euclidean: list[float]
    tasks: list[str]  # names, in the order of learning
    diverged: list[int] | None = None  # [task, epoch] (from 0) at which the loss was no longer finite

    @property
    def matrix(self) -> Array:
        return np.array(self.accuracy, dtype=float)

    @property
    def complete(self) -> bool:
        return self.diverged is None

    @property
    def numbers(self) -> bytes:
        """All fields, the same bytes for the same run."""
        return json.dumps(plain(asdict(self)), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """Digest of all fields: a run that was trained again with another outcome has another."""
        return hashlib.sha256(self.numbers).hexdigest()[:16]


@dataclass(frozen=True, repr=False)
class Result(ResultBase):
    """Accuracy matrices of a method on a benchmark, run by run, with their origin.

    Measures are a `Summary` (mean, standard error and the value of every run), or None where none can be given.
    """

    FILE, WHAT, FORMATS, FORM = "result.json", "a Kenyon result", Formats("result", 1), _ImageResultForm

    runs: list[Run]
    # Accuracy of each task learned from a random start, by seed, in the order of that seed's tasks.
    alone: dict[int, list[float]] = field(default_factory=dict)

    @property
    def complete_runs(self) -> list[Run]:
        """Runs whose loss stayed finite."""
        return [run for run in self.runs if run.complete]

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
        """True for runs of a search, whose accuracies are of held-out training data."""
        return "search" in self.config

    @property
    def title(self) -> str:
        """The benchmark, and for a search its protocol. Results of one title may share a table."""
        return self.benchmark + (f" ({self.config['search']['name']} search)" if self.held_out else "")

    def _headline(self) -> list[str]:
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
        """Average accuracy over all tasks in the end, in per cent."""
        return Summary.of([average_accuracy(run.matrix) for run in self.complete_runs])

    @property
    def bwt(self) -> Summary | None:
        """Backward transfer: the change of earlier tasks by later learning, in per cent."""
        return Summary.of([backward_transfer(run.matrix) for run in self._sequential])

    @property
    def fwt(self) -> Summary | None:
        """Forward transfer: a task before it is learned, against a random start; needs the reference `alone`."""
        runs = [run for run in self._sequential if run.seed in self.alone]
        return Summary.of([forward_transfer(run.matrix, np.array(self.alone[run.seed])) for run in runs])

    @property
    def learned(self) -> Summary | None:
        """Accuracy of every task directly after learning it: the method's plasticity."""
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
        names = ("aac", "fwt", "bwt", "learned", "cosine", "euclidean")
        return {name: rounded(getattr(self, name)) for name in names} | {"seconds": round(self.seconds, 2)}

    def _numbers(self) -> dict[str, Any]:
        alone = {str(seed): values for seed, values in self.alone.items()}
        return {"runs": [asdict(run) for run in self.runs], "alone": alone}

    @classmethod
    def _of_form(cls, form: _ImageResultForm, config: dict[str, Any], shared: dict[str, Any]) -> Self:
        _need("search" not in config or type(config["search"].get("name")) is str, "config.search has no name")
        shapes = set()
        runs = [
            Run(
                run.seed,
                _rows(run.accuracy),
                _rows(run.own_accuracy),
                _restored(run.cosine),
                _restored(run.euclidean),
                run.tasks,
                run.diverged,
            )
            for run in form.runs
        ]
        alone = {int(seed): _restored(values) for seed, values in form.alone.items()}
        for run in runs:
            where, T = f"the run of seed {run.seed}", len(run.tasks)
            _need_rows(run.accuracy, T, f"accuracy of {where}")
            own = run.own_accuracy
            width = len(own[0]) if own else 0
            _need(len(own) in (0, T), f"own_accuracy of {where} is not {T} rows")
            _need_rows(own, width, f"own_accuracy of {where}")
            for values in (run.cosine, run.euclidean):
                _need(len(values) in (0, T), f"diversity of {where} is not {T} numbers")
            if run.complete:
                _need(bool(run.accuracy) and T > 0, f"{where} has no accuracy, but did not diverge")
                _need(len(own) == len(run.cosine) == len(run.euclidean) == T, f"{where} was not measured in the end")
                shapes.add((len(run.accuracy), T, len(own), width))
            _need(len(alone.get(run.seed, run.tasks)) == T, f"alone of seed {run.seed} is not a number for each task")
        _need(len(shapes) < 2, "its runs have different numbers of tasks or learners")
        return cls(config, form.parameters, runs, form.fleets, alone, **shared)


# ------------------------------------------------------------------------------------------------- games


@dataclass(frozen=True)
class GameRun:
    """One seed."""

    seed: int
    scores: list[list[float]]  # (evaluations, games): mean raw score of an episode; NaN before a game is learned
    diverged: list[int] | None = None  # [game, update] (from 0) at which the loss was no longer finite

    @property
    def matrix(self) -> Array:
        return np.array(self.scores, dtype=float)

    @property
    def complete(self) -> bool:
        return self.diverged is None


@dataclass(frozen=True, repr=False)
class GameResult(ResultBase):
    """Scores of a method on a suite of games, run by run, with their origin."""

    FILE, WHAT, FORMATS, FORM = "scores.json", "scores of games", Formats("result of games", 1), _GameResultForm

    runs: list[GameRun]
    moments: list[list[int]]  # of every evaluation: [index of the game being learned, its steps so far]

    @property
    def complete_runs(self) -> list[GameRun]:
        """Runs whose loss stayed finite."""
        return [run for run in self.runs if run.complete]

    @property
    def games(self) -> list[str]:
        return list(self.config["games"])

    @property
    def scores(self) -> Array:
        """Scores of the complete runs, (R, evaluations, games)."""
        return np.array([run.scores for run in self.complete_runs], dtype=float)

    @property
    def ends(self) -> list[int]:
        """The last evaluation while each game is learned: row ends[t] holds the scores after game t."""
        return [max(row for row, (g, _) in enumerate(self.moments) if g == game) for game in range(len(self.games))]

    @property
    def steps_per_second(self) -> float:
        total = sum((fleet.steps_per_second or 0.0) * fleet.seconds for fleet in self.fleets)
        return total / max(self.seconds, 1e-9)

    def measurements(self) -> Iterator[dict[str, Any]]:
        for run in self.complete_runs:
            for after, row in enumerate(run.matrix[self.ends], 1):
                for game, (name, score) in enumerate(zip(self.games, row.tolist(), strict=True), 1):
                    if math.isfinite(score):  # NaN before the game is learned
                        yield {"seed": run.seed, "after_task": after, "task": game, "task_name": name, "score": score}

    def final(self, game: int) -> Summary | None:
        """Score of a game after all games."""
        return Summary.of([float(run.matrix[-1, game]) for run in self.complete_runs])

    def learned(self, game: int) -> Summary | None:
        """Score of a game directly after learning it."""
        return Summary.of([float(run.matrix[self.ends[game], game]) for run in self.complete_runs])

    def summary(self) -> dict[str, Any]:
        each = {
            n: {"final": rounded(self.final(g)), "learned": rounded(self.learned(g))}
            for g, n in enumerate(self.games)
        }
        return {"games": each if self.complete_runs else {}, "seconds": round(self.seconds, 2)}

    def _numbers(self) -> dict[str, Any]:
        return {"moments": self.moments, "runs": [asdict(run) for run in self.runs]}

    @classmethod
    def _of_form(cls, form: _GameResultForm, config: dict[str, Any], shared: dict[str, Any]) -> Self:
        games, moments = len(form.config.games), form.moments
        runs = [GameRun(run.seed, _rows(run.scores), run.diverged) for run in form.runs]
        if any(run.complete for run in runs):
            _need({game for game, _ in moments} == set(range(games)), "a game has no moment at which it was tested")
        for run in runs:
            _need_rows(run.scores, games, f"scores of the run of seed {run.seed}")
            complete = not run.complete or len(run.scores) == len(moments)
            _need(complete, f"scores of the run of seed {run.seed} are not a row for each moment")
        return cls(config, form.parameters, runs, form.fleets, moments, **shared)


RESULTS: tuple[type[ResultBase], ...] = (Result, GameResult)


# ------------------------------------------------------------------------------------------------- JSON


def plain(value: Any) -> Any:
    """Return the value with null instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def checksummed_text(body: dict[str, Any]) -> str:
    """Return a JSON object as its file has it, with a checksum: NaN as null, innermost lists on one line."""
    return compact(json.dumps(with_checksum(plain(body)), indent=1, allow_nan=False))


def compact(text: str) -> str:
    """Put innermost lists on one line, a matrix as rows. The text is indented, and has no newline inside a string."""
    import re

    def row(found: re.Match[str]) -> str:
        return "[" + re.sub(r"\s*\n\s*", " ", found[1]) + "]"

    return re.sub(r"\[\n\s+([^\[\]{}]*?)\n\s*\]", row, text)
