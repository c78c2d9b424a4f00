"""What images and games have in common before they are learned: a configuration that answers for itself.

Grids, fleets, states, folders, commands and sweeps ask it, and need not know what is learned.

A configuration: everything that decides the numbers of an experiment, except the seeds.

It is made from a benchmark, a method and the user's overrides, is stored with every result, and two results may
stand in one folder only if theirs are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import SearchProtocol
from kenyon.errors import ConfigError, expected, shown, unknown
from kenyon.experiments.results import Kept, Result
from kenyon.methods import METHODS, Method, find_method
from kenyon.methods.penalties.strength import LARGEST
from kenyon.models.ensemble import Diversity
from kenyon.models.heads import FirstHeads
from kenyon.training.regime import Training
from kenyon.utils.user_code import code_digests


class Configured(Protocol):
    """Everything that decides the numbers of an experiment, except the seeds."""

    @property
    def benchmark(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def architecture(self) -> Architecture: ...

    @property
    def kept(self) -> type[Kept[Any, Any]]:
        """The results that its runs become."""
        ...

    @property
    def folder(self) -> Path:
        """Of its results, below OUT."""
        ...

    @property
    def structure(self) -> str:
        """Configurations that agree in it can train in one fleet."""
        ...

    @property
    def length(self) -> float:
        """Of one run, in epochs or whatever costs a like time."""
        ...

    @property
    def demand(self) -> tuple[str, str]:
        """What a run asks of a device's memory, besides its network, and how to ask for less."""
        ...

    @property
    def changes(self) -> tuple[list[str], dict[str, Any]]:
        """What differs from the published configuration: words for the command line, and settings."""
        ...

    def as_dict(self) -> dict[str, Any]: ...


PRECISIONS = ("auto", "float32", "bfloat16")
MOST_LEARNERS = 10_000
MOST = 10**12  # of a whole number: beyond it nothing could be computed, or even counted


@dataclass(frozen=True)
class Architecture:
    learners: int
    width: int
    diversity: Diversity = "high"
    gate: bool = False  # the optional task gate
    precision: str = "auto"  # of the learners; auto: bfloat16 on a GPU, float32 on a CPU
    first_heads: FirstHeads = "drawn"  # what heads begin with, or zero

    def as_dict(self) -> dict[str, Any]:
        """What came later is left out where it is as it was: states and analyses from before are found by these."""
        body = asdict(self)
        return body if self.first_heads != "drawn" else {name: body[name] for name in body if name != "first_heads"}


@dataclass(frozen=True)
class Config:
    """Everything that decides the numbers of an experiment, except the seeds."""

    benchmark: str
    method: str
    tasks: int
    training: Training
    architecture: Architecture
    hyper: dict[str, Any]
    search: SearchProtocol | None = None  # of a run that settings are chosen by; reported runs have none
    own: dict[str, str] = field(default_factory=dict)  # what is a user's own, and a digest of its code

    kept: ClassVar = Result

    @property
    def folder(self) -> Path:
        """Of its results below OUT; what a search computes is apart from what is reported."""
        if self.search is not None:
            return Path("search", self.benchmark, self.method, self.search.name)
        return Path(self.benchmark, self.method)

    @property
    def length(self) -> float:
        """Epochs of a run, all tasks and stages."""
        return self.tasks * len(self.build_method().stages) * self.training.epochs

    @property
    def usual_rate(self) -> float:
        """The learning rate of the benchmark."""
        return find_benchmark(self.benchmark).training.rate

    @property
    def demand(self) -> tuple[str, str]:
        """What a run asks of a device's memory, besides its network, and how to ask for less."""
        return f"batch {self.training.batch}", "a smaller batch (batch=...)"

    @property
    def changes(self) -> tuple[list[str], dict[str, Any]]:
        """What differs from the published configuration: words for the command line, and settings."""
        usual = configure(self.benchmark, self.method, overrides=self.hyper)
        theirs = usual.as_dict() | {
            "hyper": dict(find_benchmark(self.benchmark).hyperparameters.get(self.method, {}))
        }
        learners = self.architecture.learners
        if learners != usual.architecture.learners:  # their width then follows from their number
            several = configure(self.benchmark, self.method, overrides=self.hyper | {"learners": learners})
            theirs["architecture"] |= {"width": several.architecture.width}
        words = [] if self.tasks == usual.tasks else ["--tasks", str(self.tasks)]
        return words, changed_settings(self.as_dict(), theirs)

    def build_method(self) -> Method:
        return find_method(self.method)(self.hyper)

    def as_dict(self) -> dict[str, Any]:
        body = asdict(self) | {"training": self.training.as_dict(), "architecture": self.architecture.as_dict()}
        return {name: part for name, part in body.items() if part or name not in ("search", "own")}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Config:
        """As it stands in a result. Settings that came later have their defaults."""
        parts = {"training": Training, "architecture": Architecture, "search": SearchProtocol}
        try:
            return cls(**{name: parts[name](**value) if name in parts else value for name, value in saved.items()})
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"What was saved is no configuration of this version of Kenyon ({error}). Update Kenyon, or run anew."
            ) from error

    @property
    def structure(self) -> str:
        """Everything but the strengths: configurations that agree in it can train in one fleet."""
        strengths = find_method(self.method).strengths
        hyper = {name: value for name, value in self.hyper.items() if name not in strengths}
        return json.dumps(self.as_dict() | {"hyper": hyper}, sort_keys=True)


def configure(
    benchmark: str,
    method: str,
    *,
    tasks: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    search: SearchProtocol | None = None,
) -> Config:
    """The published configuration of a method on a benchmark, with the user's overrides."""
    bench, spec = find_benchmark(benchmark), find_method(method)
    given = dict(overrides or {})
    for name, value in given.items():
        check_kind(name, value)
    count = len(bench.source.class_counts)
    tasks = None if tasks is None else _whole("tasks", tasks)
    if tasks is not None and not 1 <= tasks <= count:
        raise ConfigError(f"{benchmark} has {count} tasks; --tasks {tasks} is not possible. Choose 1 to {count}.")

    training = replace(bench.training, **take(given, Training))
    theirs = {name: given.pop(name) for name in list(given) if name in spec.settings}
    hyper = spec.resolve(theirs, bench.hyperparameters.get(method, {}))
    missing = [name for name in spec.required if name not in hyper]
    if missing and all(name in spec.defaults for name in missing):
        some = " ".join(f"--set {name}={spec.defaults[name]:g}" for name in missing)
        raise ConfigError(
            f"{method} needs {', '.join(missing)}, and nothing is chosen for {benchmark}. Begin with {some}, and let "
            "`kenyon search` find better ones."
        )
    made = spec(hyper)  # says what is missing or impossible
    shape = {name: given.pop(name) for name in list(given) if name in architecture_settings(made)}
    learners = shape.pop("learners", made.learners)
    parts = len(bench.source.class_counts) if made.schedule == "discrete" else learners
    architecture = build_architecture(learners, partial(bench.width_for, parts), shape)
    if given:
        told = unknown(f"setting of {method}", next(iter(given)), settings(method, made))
        raise ConfigError(f"{told} `kenyon list settings --method {method}` says what they mean.")
    if search and search.share + training.validation >= 1:
        raise ConfigError(
            f"Of the training data {search.share:g} is to score on and {training.validation:g} for validation, and "
            "nothing is left to learn from. Choose a smaller share."
        )
    own = code_digests(benchmark=bench.source.load, method=spec.build)
    return Config(benchmark, method, tasks or count, training, architecture, hyper, search, own)


def _whole(name: str, value: Any) -> int:
    """A whole number, Python's or NumPy's."""
    try:
        return index(value)
    except TypeError:
        raise expected(name, "a whole number", value) from None


def changed_settings(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration, as a dictionary, that another has not, or not so."""
    return {
        name: value
        for part in ("training", "architecture", "hyper")
        for name, value in mine[part].items()
        if name not in theirs[part] or theirs[part][name] != value
    }


def settings(method: str, made: Method | None = None) -> tuple[str, ...]:
    """Everything `--set` may name for a method; `made`: where its values are known."""
    training, spec = (f.name for f in fields(Training)), find_method(method)
    return (*training, *architecture_settings(made or spec.example), *spec.settings)


def architecture_settings(made: Method) -> tuple[str, ...]:
    if made.apart:
        return ("learners", "width", "precision", "first_heads")
    return tuple(f.name for f in fields(Architecture)) if made.multi else ("width", "precision", "first_heads")


def take(given: dict[str, Any], part: type) -> dict[str, Any]:
    names = {f.name for f in fields(part)}
    return {name: given.pop(name) for name in list(given) if name in names}


def build_architecture(learners: int, usual_width: Callable[[], int], shape: dict[str, Any]) -> Architecture:
    """`usual_width`: of one of them, where `shape` says nothing else; a learner a task is as one of so many, and
    the heads of independent ones come on top.
    """
    if not 1 <= learners <= MOST_LEARNERS:
        raise ConfigError(f"learners must be at least 1 and at most {MOST_LEARNERS:,}, not {learners:,}.")
    width = shape.pop("width") if "width" in shape else usual_width()
    if width < 1:
        raise ConfigError(f"width must be at least 1, not {width}.")
    architecture = Architecture(learners, width, **shape)
    if architecture.diversity not in get_args(Diversity):
        raise ConfigError(f"diversity must be low, medium or high, not '{architecture.diversity}'.")
    if architecture.first_heads not in get_args(FirstHeads):
        raise ConfigError(f"first_heads must be drawn or zero, not '{architecture.first_heads}'.")
    if architecture.precision not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not '{architecture.precision}'.")
    return architecture


def parse_settings(
    pairs: Sequence[str], methods: Sequence[str], settings_of: Callable[[str], Sequence[str]] = settings
) -> dict[str, Any]:
    """`--set name=value` pairs as Python values, `name=value,value` as lists of them.

    Each name must mean something to one of the methods.
    """
    known = {name for method in methods for name in settings_of(method)}
    given: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not text.strip():
            raise ConfigError(
                f"--set takes name=value or name=value,value,..., not '{pair}'. For example --set lambda_sp=5000."
            )
        if name not in known:
            raise unknown(f"setting of {' or '.join(methods)}", name, known)
        if name in given:
            raise ConfigError(f"--set {name} is given twice. Several values go into one: --set {name}=VALUE,VALUE.")
        given[name] = _convert_all(name, text) if "," in text else _convert(name, text.strip())
    return given


def _convert_all(name: str, text: str) -> list[Any]:
    """The values of a grid. A comma at the end makes a list of a single value: a grid of one point."""
    parts = [part.strip() for part in text.strip().removesuffix(",").split(",")]
    if not all(parts):
        raise ConfigError(
            f"--set {name}={text} has an empty place among its values. Write one comma between two values: "
            f"--set {name}={','.join(part for part in parts if part) or 'VALUE'}."
        )
    return [_convert(name, part) for part in parts]


# Of settings of images and games that are no number with a fraction.
KINDS: dict[str, type] = {
    **dict.fromkeys(("epochs", "batch", "patience", "drop_epoch", "penalties_from", "learners", "width"), int),
    **dict.fromkeys(
        ("steps", "copies", "horizon", "minibatches", "evaluations", "episodes", "longest"), int
    ),  # games
    **dict.fromkeys(("importance_rollouts", "importance_steps"), int),
    **dict.fromkeys(("gate", "carry", "bounded"), bool),
    **dict.fromkeys(("optimiser", "schedule", "diversity", "precision", "first_heads", "anchors", "acting"), str),
}
_SAID = {str: "a word", bool: "True or False", int: "a whole number", float: "a number"}
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def kind_of(setting: str) -> type:
    """str, bool, int or float: of training, architecture and games as above, otherwise as methods say it."""
    said = (spec.kinds[setting] for spec in METHODS.values() if setting in spec.kinds)
    return KINDS.get(setting) or next(said, float)


def check_kind(name: str, value: Any) -> None:
    """That a setting given from Python is of the kind that `--set` would have made of it."""
    kind = kind_of(name)
    accepted: Any = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise expected(name, _SAID[kind], value)
    if kind is int and value > MOST:
        raise ConfigError(f"{name} must be at most {MOST:,}, not {shown(value)}.")
    if kind is float and not abs(value) <= LARGEST:  # nor is NaN
        raise ConfigError(f"{name} must be a finite number, at most {LARGEST:.2g} in size, not {shown(value)}.")


def _convert(name: str, text: str) -> Any:
    kind = kind_of(name)
    if kind is bool:
        if text.lower() not in _TRUTH:
            raise ConfigError(f"{name} is true or false, not {shown(text)}.")
        return _TRUTH[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise expected(name, _SAID[kind], text) from None
