"""Configurations: all that decides the numbers of an experiment, except the seeds.

A configuration follows from a benchmark or suite of games, a method and the user's overrides. It is stored with every
result, and two results may share a folder only if their configurations are equal. Images and games differ in the
regime: `Training`, or `Ppo` on a suite of games.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from kenyon.benchmarks.registry import BENCHMARKS, Benchmark, find_benchmark
from kenyon.data import SearchProtocol
from kenyon.errors import ConfigError, expected, shown, unknown
from kenyon.methods import METHODS, Method, MethodSpec, find_method
from kenyon.methods.base import LEARN
from kenyon.methods.penalties.strength import LARGEST
from kenyon.models.ensemble import Diversity
from kenyon.models.heads import FirstHeads
from kenyon.training.regime import Training
from kenyon.utils.user_code import code_digests

if TYPE_CHECKING:
    from collections.abc import Callable

    from kenyon.experiments.results import GameResult, Result
    from kenyon.rl.ppo import Ppo
    from kenyon.rl.suites import SuiteBenchmark

PRECISIONS = ("auto", "float32", "bfloat16")
MOST_LEARNERS = 10_000
MOST = 10**12  # largest whole number of a setting


@dataclass(frozen=True)
class Architecture:
    learners: int
    width: int
    diversity: Diversity = "high"
    gate: bool = False  # the optional task gate
    precision: str = "auto"  # of the learners; auto: bfloat16 on a GPU, float32 on a CPU
    first_heads: FirstHeads = "drawn"  # initial weights of heads, or zero

    def as_dict(self) -> dict[str, Any]:
        """Leave out a later field at its default: digests of saved states and analyses stay the same."""
        body = asdict(self)
        return body if self.first_heads != "drawn" else {name: body[name] for name in body if name != "first_heads"}


@dataclass(frozen=True)
class Config:
    """All that decides the numbers of an experiment, except the seeds."""

    benchmark: str
    method: str
    tasks: int
    training: Any  # the regime: Training, or Ppo on a suite of games
    architecture: Architecture
    hyper: dict[str, Any]
    search: SearchProtocol | None = None  # of runs of a search; None for reported runs
    own: dict[str, str] = field(default_factory=dict)  # digests of the user's own code, by what it defines
    games: tuple[str, ...] = ()  # of a suite, in the order of learning

    @property
    def kept(self) -> type[Result] | type[GameResult]:
        """The class of its results."""
        from kenyon.experiments.results import GameResult, Result

        return GameResult if self.games else Result

    @property
    def folder(self) -> Path:
        """The folder of its results below OUT. Searches have a folder of their own."""
        if self.search is not None:
            return Path("search", self.benchmark, self.method, self.search.name)
        return Path(self.benchmark, self.method)

    @property
    def structure(self) -> str:
        """A text that is equal for configurations that can train in one job: for images without the strengths, for
        games, where playing takes the time, with everything.
        """
        body = self.as_dict()
        if not self.games:
            strengths = find_method(self.method).strengths
            body["hyper"] = {name: value for name, value in self.hyper.items() if name not in strengths}
        return json.dumps(body, sort_keys=True)

    @property
    def length(self) -> float:
        """Cost of a run: epochs over all tasks and stages, or thousands of steps over all games."""
        regime = self.training
        if self.games:
            return float(len(self.games) * regime.updates * regime.samples / 1000)
        return self.tasks * len(self.build_method().stages) * float(regime.epochs)

    @property
    def usual_rate(self) -> float:
        """The learning rate of the benchmark."""
        return float(find_setup(self.benchmark).training.rate)

    @property
    def demand(self) -> tuple[str, str]:
        """The sizes that decide the memory of a run, besides its network, and how to reduce them."""
        regime = self.training
        if self.games:
            needs = f"{regime.copies} copies of a game, {regime.horizon} steps, {regime.minibatches} minibatches"
            return needs, "fewer copies or more minibatches (copies=..., minibatches=...)"
        return f"batch {regime.batch}", "a smaller batch (batch=...)"

    @property
    def changes(self) -> tuple[list[str], dict[str, Any]]:
        """Differences from the published configuration: options of the command line, and settings."""
        usual = configure(self.benchmark, self.method, overrides=self.hyper)
        published = find_setup(self.benchmark).hyperparameters.get(self.method, {})
        theirs = usual.as_dict() | {"hyper": dict(published)}
        learners = self.architecture.learners
        if not self.games and learners != usual.architecture.learners:  # the usual width follows from their number
            several = configure(self.benchmark, self.method, overrides=self.hyper | {"learners": learners})
            theirs["architecture"] |= {"width": several.architecture.width}
        options = []
        if self.games != usual.games:
            options = ["--games", ",".join(self.games)]
        elif self.tasks != usual.tasks:
            options = ["--tasks", str(self.tasks)]
        own = self.as_dict()
        return options, {
            name: value
            for part in ("training", "architecture", "hyper")
            for name, value in own[part].items()
            if name not in theirs[part] or theirs[part][name] != value
        }

    def build_method(self) -> Method:
        return find_method(self.method)(self.hyper)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry `config` of its results."""
        body = asdict(self) | {"architecture": self.architecture.as_dict()}
        if self.games:
            order = ("benchmark", "method", "games", "training", "architecture", "hyper", "search", "own")
            body["games"] = list(self.games)
        else:
            order = ("benchmark", "method", "tasks", "training", "architecture", "hyper", "search", "own")
            body["training"] = self.training.as_dict()
        return {name: body[name] for name in order if body[name] or name not in ("search", "own")}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Config:
        """Build a configuration from the entry of a result. Later settings have their defaults."""
        try:
            parts: dict[str, Callable[..., Any]] = {"architecture": Architecture, "search": SearchProtocol}
            parts["training"] = _ppo() if "games" in saved else Training
            body = {name: parts[name](**value) if name in parts else value for name, value in saved.items()}
            if "games" in saved:
                body |= {"games": tuple(saved["games"]), "tasks": len(saved["games"])}
            return cls(**body)
        except (TypeError, ValueError, LookupError) as error:
            raise ConfigError(
                f"This is no configuration of this version of Kenyon ({error}). Update Kenyon, or run again."
            ) from error


def _ppo() -> type[Ppo]:
    from kenyon.rl.ppo import Ppo

    return Ppo


def is_suite(benchmark: Any) -> bool:
    """True for the name of a suite of games."""
    if type(benchmark) is not str or benchmark in BENCHMARKS:
        return False
    from kenyon.rl.suites import SUITE_BENCHMARKS

    return benchmark in SUITE_BENCHMARKS


def find_setup(name: str) -> Benchmark | SuiteBenchmark:
    """Return the benchmark or suite of games of this name: network, regime and hyper-parameters."""
    if not is_suite(name):
        return find_benchmark(name)
    from kenyon.rl.suites import find_suite_benchmark

    return find_suite_benchmark(name)


def configure(
    benchmark: str,
    method: str,
    *,
    tasks: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    search: SearchProtocol | None = None,
    games: Sequence[str] | None = None,
) -> Config:
    """Return the published configuration of a method on a benchmark or suite, with the user's overrides."""
    setup, spec, suite = find_setup(benchmark), find_method(method), is_suite(benchmark)
    if suite and not playable(spec):
        raise _unplayable(method)
    chosen = _games(setup, benchmark, games) if suite else ()
    given = dict(overrides or {})
    for name, value in given.items():
        check_kind(name, value)
    tasks = len(chosen) if suite else _tasks(setup, benchmark, tasks)

    regime: Any = setup.training
    training = replace(regime, **_take(given, [f.name for f in fields(regime)]))
    chosen_hyper = _take(given, spec.settings)
    if suite and chosen_hyper.get("definition", "published") != "published":
        raise ConfigError("For games there is the published definition alone. Set single switches instead.")
    hyper = spec.resolve(chosen_hyper, setup.hyperparameters.get(method, {}))
    _check_defaults(benchmark, spec, hyper)
    made = spec(hyper)  # names missing and impossible values
    if suite:
        _check_game_method(method, made, training)
    shape = _take(given, _architecture_settings(made, games=suite))
    learners = shape.pop("learners", made.learners)
    # A network for each task, and independent learners, are as wide as one of that many learners.
    parts = len(setup.source.class_counts) if not suite and made.schedule == "discrete" else learners  # type: ignore[union-attr]
    architecture = _architecture(learners, partial(setup.width_for, parts), shape)
    if given:
        error = unknown(f"setting of {method}", next(iter(given)), settings(method, made, games=suite))
        raise error if suite else ConfigError(f"{error} `kenyon list settings --method {method}` explains them.")
    if search and search.share + training.validation >= 1:
        raise ConfigError(
            f"{search.share:g} of the training data is for scores and {training.validation:g} for validation, which "
            "leaves nothing to learn from. Choose a smaller share."
        )
    own = code_digests(method=spec.build) if suite else code_digests(benchmark=setup.source.load, method=spec.build)  # type: ignore[union-attr]
    return Config(benchmark, method, tasks, training, architecture, hyper, search, own, chosen)


def _take(given: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Move the named entries out of `given`."""
    return {name: given.pop(name) for name in list(given) if name in names}


def _tasks(setup: Any, benchmark: str, tasks: Any) -> int:
    count = len(setup.source.class_counts)
    if tasks is None:
        return count
    try:
        tasks = index(tasks)  # a whole number of Python or NumPy
    except TypeError:
        raise expected("tasks", "a whole number", tasks) from None
    if not 1 <= tasks <= count:
        raise ConfigError(f"{benchmark} has {count} tasks; --tasks {tasks} is not possible. Choose 1 to {count}.")
    return int(tasks)


def _games(setup: Any, benchmark: str, games: Sequence[str] | None) -> tuple[str, ...]:
    suite = setup.suite
    chosen = suite.games if games is None else tuple(games)
    if not chosen:
        raise ConfigError(f"No game is named. {benchmark} has {', '.join(suite.games)}.")
    suite.check(chosen)
    if len(set(chosen)) != len(chosen):
        raise ConfigError(f"A game is named twice in {','.join(chosen)}.")
    return tuple(chosen)


def _check_defaults(benchmark: str, spec: MethodSpec, hyper: Mapping[str, Any]) -> None:
    """Refuse a method without strengths for this benchmark, and name values to begin with."""
    missing = [name for name in spec.required if name not in hyper]
    if benchmark in BENCHMARKS and missing and all(name in spec.defaults for name in missing):
        some = " ".join(f"--set {name}={spec.defaults[name]:g}" for name in missing)
        raise ConfigError(
            f"{spec.name} needs {', '.join(missing)}, and nothing is chosen for {benchmark}. Begin with {some}, and "
            "let `kenyon search` find better ones."
        )


# ------------------------------------------------------------------------------------------------- methods for games


def playable(spec: MethodSpec) -> bool:
    """True for a method that games can use: penalties and importances, but nothing that acts on images."""
    return _plays(spec.example)


def _plays(method: Method) -> bool:
    ordinary = method.stages == (LEARN,) and not (method.mechanisms or method.replay or method.apart)
    return ordinary and method.schedule in ("sequential", "restart")


def _check_game_method(name: str, made: Method, training: Any) -> None:
    from kenyon.rl.importance import check_importance

    if not _plays(made):
        raise _unplayable(name)
    check_importance(made, training.anchors)


def _unplayable(method: str) -> ConfigError:
    some = ", ".join(name for name, other in METHODS.items() if playable(other))
    return ConfigError(f"{method} works on the images of a task, and games have none. For games there are: {some}.")


# ------------------------------------------------------------------------------------------------- architecture


def _architecture(learners: int, usual_width: Callable[[], int], shape: dict[str, Any]) -> Architecture:
    """`usual_width`: width of one learner where `shape` gives none."""
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


def _architecture_settings(made: Method, *, games: bool) -> tuple[str, ...]:
    if made.apart:
        names: tuple[str, ...] = ("learners", "width", "precision", "first_heads")
    else:
        names = tuple(f.name for f in fields(Architecture)) if made.multi else ("width", "precision", "first_heads")
    return tuple(name for name in names if name != "first_heads") if games else names  # those of games begin near 0


# ------------------------------------------------------------------------------------------------- settings


def settings(method: str, made: Method | None = None, *, games: bool = False) -> tuple[str, ...]:
    """Return the settings of a method that `--set` takes. `made`: the method, where its values are known."""
    spec = find_method(method)
    regime = [f.name for f in fields(_ppo() if games else Training)]
    return (*regime, *_architecture_settings(made or spec.example, games=games), *spec.settings)


_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}  # annotations of regimes; others are words
_EXPECTED = {str: "a word", bool: "True or False", int: "a whole number", float: "a number"}
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _kinds(part: type) -> dict[str, type]:
    return {f.name: _KINDS.get(str(f.type), str) for f in fields(part)}


_OWN_KINDS = _kinds(Training) | _kinds(Architecture)


def kind_of(setting: str) -> type:
    """Return str, bool, int or float: the type of a setting of the regime, the architecture or a method."""
    if setting in _OWN_KINDS:
        return _OWN_KINDS[setting]
    of_method = next((spec.kinds[setting] for spec in METHODS.values() if setting in spec.kinds), None)
    return of_method or _kinds(_ppo()).get(setting, float)


def is_setting(name: str) -> bool:
    """True for a setting of any regime, architecture or method."""
    return name in _OWN_KINDS or any(name in spec.settings for spec in METHODS.values()) or name in _kinds(_ppo())


def check_kind(name: str, value: Any) -> None:
    """Refuse a setting from Python or TOML of another type than `--set` would give it."""
    kind = kind_of(name)
    accepted: Any = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (type(value) is bool and kind is not bool):
        raise expected(name, _EXPECTED[kind], value)
    if kind is int and value > MOST:
        raise ConfigError(f"{name} must be at most {MOST:,}, not {shown(value)}.")
    if kind is float and not abs(value) <= LARGEST:  # refuses NaN too
        raise ConfigError(f"{name} must be a finite number, at most {LARGEST:.2g} in size, not {shown(value)}.")


def parse_settings(
    pairs: Sequence[str], methods: Sequence[str], settings_of: Callable[[str], Sequence[str]] = settings
) -> dict[str, Any]:
    """Return `--set name=value` pairs as values, `name=value,value` as lists. Each name is a setting of a method."""
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
        given[name] = parse_setting(name, text)
    return given


def parse_setting(name: str, text: str) -> Any:
    """Return the value of a setting from its text; with commas a list, and `5,` a list of one value."""
    if "," not in text:
        return _convert(name, text.strip())
    parts = [part.strip() for part in text.strip().removesuffix(",").split(",")]
    if not all(parts):
        raise ConfigError(
            f"--set {name}={text} has an empty place among its values. Write one comma between two values: "
            f"--set {name}={','.join(part for part in parts if part) or 'VALUE'}."
        )
    return [_convert(name, part) for part in parts]


def _convert(name: str, text: str) -> Any:
    kind = kind_of(name)
    if kind is bool:
        if text.lower() not in _TRUTH:
            raise ConfigError(f"{name} is true or false, not {shown(text)}.")
        return _TRUTH[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise expected(name, _EXPECTED[kind], text) from None
