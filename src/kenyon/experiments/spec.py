"""The request: what the command line, a TOML file, Python or a sweep asks for, declared once.

Each field of `Experiment` has its help, its options on the command line, its bounds, and whether it applies to images
or games alone. `kenyon run`, `search` and `sweep` get their options from here, `kenyon.run` checks its keywords by
it, and a TOML file may have any of the fields:

    benchmark = "digits"      # or ["r-cifar-100", "rl-mini"]
    method = "caf-ewc"        # or ["ewc", "caf-ewc"]
    seeds = 5                 # or [0, 3, 7]
    games = ["catch"]         # of a suite of games, in the order of learning

    [settings]                # as with --set; a list makes a grid
    lambda_sp = 1e6

All of it is optional. A table `origin` states where a choice comes from and has no effect. Options given with a file
take precedence, except benchmark and method: settings chosen for others are refused.

Imports little: `kenyon --help` reads these declarations.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import index
from pathlib import Path
from typing import Any, Literal

from kenyon.errors import ConfigError, expected, shown, unknown

Names = tuple[str, ...]
METHODS: Names = ("finetune", "ewc", "caf-ewc")  # that run by default
SEEDS, SEEDS_OF_GAMES = 5, 3
NAMES = "a name in quotes, or a list of names, each once"


@dataclass(frozen=True)
class Option:
    """A declared field: how it is given, and what it applies to."""

    help: str
    flags: Names = ()  # options on the command line; without any it is an argument
    name: str = ""  # on the command line and in a file, where it is another than in Python
    type: Any = str  # of the text on the command line
    shown: str | None = None  # default that the help shows
    applies: Literal["images", "games", "both"] = "both"
    least: int | None = None
    choices: Names = ()
    kind: str = ""  # what a file or Python must give, for messages
    parse: Callable[[str], Any] = lambda value: value  # text of the command line -> value
    form: Any = None  # type of the entry in a file

    def check(self, name: str, value: Any) -> Any:
        """Return a value given from Python or a file, if it is within its bounds."""
        if self.choices and value not in self.choices:
            raise expected(name, " or ".join(self.choices), value)
        if self.least is None or value is None:
            return value
        try:
            number = index(value)
        except TypeError:
            number = self.least - 1
        if number < self.least:
            raise ConfigError(f"{self.flags[0]} takes {self.kind}, at least {self.least}, not {shown(value)}.")
        return number


def parse_seeds(text: str) -> int | list[int]:
    """Return the number of seeds of `5`, or the seeds of `0,3,7`."""
    given = shown(text)
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"--seeds takes a number (5) or a list (0,3,7), not {given}.") from None
    if "," in text:
        return numbers
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"--seeds must be at least 1, not {given}.")
    return numbers[0]


def _names(kind: str) -> Callable[[str], Names]:
    def parse(text: str) -> Names:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise ConfigError(f"No {kind} is named. Give one, or several with commas.")
        if len(set(names)) != len(names):
            raise ConfigError(f"A {kind} is named twice in {text}.")
        return names

    return parse


def _option(help: str, *flags: str, **more: Any) -> dict[str, Option]:
    return {"option": Option(help, flags, **more)}


@dataclass(frozen=True)
class Experiment:
    """A request for runs: benchmarks x methods x seeds x grid."""

    benchmarks: Names = field(default=("digits",), metadata=_option(
        "A name of `kenyon list benchmarks`, or your own file.py. Several with commas.",
        name="benchmark", shown="digits", parse=_names("benchmark"), kind=NAMES, form=str | list[str],
    ))  # fmt: skip
    methods: Names = field(default=METHODS, metadata=_option(
        "One or several, with commas: names of `kenyon list methods`, or your own file.py.",
        "--method", "-m", name="method", shown=",".join(METHODS), parse=_names("method"), kind=NAMES,
        form=str | list[str],
    ))  # fmt: skip
    seeds: int | Sequence[int] | None = field(default=None, metadata=_option(
        "How many (5 means 0 to 4), or which: 0,3,7 (a single one: 7,).",
        "--seeds", shown=str(SEEDS), parse=parse_seeds, kind="how many, or a list of whole numbers",
        form=int | list[int],
    ))  # fmt: skip
    settings: Mapping[str, Any] = field(default_factory=dict, metadata=_option(
        "Change a setting: name=value, e.g. lambda_sp=5000. Several values, lambda_sp=1000,5000, make a grid: every "
        "combination is trained, with all seeds. May be repeated.",
        "--set", name="set_", type=list[str], kind="a table: [settings], and below it name = value",
        form=dict[str, Any],
    ))  # fmt: skip
    tasks: int | None = field(default=None, metadata=_option(
        "Only the first so many tasks of each run.", "--tasks", type=int, applies="images", form=int,
    ))  # fmt: skip
    games: Names | None = field(default=None, metadata=_option(
        "Of a suite of games: which, in which order, with commas; otherwise all.",
        "--games", applies="games", kind=NAMES, form=str | list[str],
        parse=lambda text: tuple(name.strip() for name in text.split(",") if name.strip()),
    ))  # fmt: skip
    device: str = field(default="auto", metadata=_option("auto, cpu or cuda.", "--device", form=str))
    data: Path | str | None = field(default=None, metadata=_option(
        "Folder with the datasets; otherwise KENYON_DATA, then the cache folder.",
        "--data", type=Path, applies="images", form=str,
    ))  # fmt: skip
    out: Path | str = field(
        default=Path("results"), metadata=_option("Results folder.", "--out", type=Path, form=str)
    )
    fwt: bool = field(default=True, metadata=_option(
        "Also learn every task from a random start, once per benchmark: forward transfer needs it.",
        "--fwt/--no-fwt", type=bool, applies="images", form=bool,
    ))  # fmt: skip
    fleet: int | None = field(default=None, metadata=_option(
        "Most runs to train together; otherwise 128, or as many as the device has room for.",
        "--fleet", type=int, least=1, kind="a whole number of runs", form=int,
    ))  # fmt: skip
    keep: str = field(default="last", metadata=_option(
        "Keep the weights after every task, not only the final ones.",
        "--keep-every-task", name="keep_every_task", type=bool, choices=("last", "every"), applies="images",
        parse=lambda every: "every" if every else "last", form=str,
    ))  # fmt: skip
    deterministic: bool = field(default=False, metadata=_option(
        "PyTorch's deterministic algorithms: a GPU's numbers repeat bit for bit, and training is slower. Those of a "
        "CPU always do.",
        "--deterministic", type=bool, applies="images", form=bool,
    ))  # fmt: skip
    log: str | None = field(default=None, metadata=_option(
        "Also write the numbers, while they come, to tensorboard (below OUT) or wandb.",
        "--log", applies="images", form=str,
    ))  # fmt: skip

    @classmethod
    def of(cls, **given: Any) -> Experiment:
        """Return a request from Python values. Unknown fields and values out of bounds raise ConfigError."""
        for name in given:
            if name not in OPTIONS:
                raise unknown("field of an experiment", name, OPTIONS)
        given["settings"] = dict(given.get("settings") or {})
        return cls(**{name: OPTIONS[name].check(name, value) for name, value in given.items()})

    def check_applies(self, images: Sequence[str], suites: Sequence[str]) -> None:
        """Refuse options that mean nothing to any of the benchmarks."""
        for f in fields(self):
            option, given = OPTIONS[f.name], getattr(self, f.name) != f.default
            if given and option.applies == "images" and not images:
                raise for_images(option.flags[0].rpartition("/")[2], suites)
            if given and option.applies == "games" and not suites:
                raise for_games(option.flags[0])


def for_images(flag: str, suites: Sequence[str]) -> ConfigError:
    what = f"{suites[0]} is a suite of games" if len(suites) == 1 else f"{', '.join(suites)} are suites of games"
    return ConfigError(f"{flag} is for images, and {what}. Leave it out.")


def for_games(flag: str) -> ConfigError:
    from kenyon.rl.suites import SUITE_BENCHMARKS

    return ConfigError(f"{flag} is for suites of games: {', '.join(SUITE_BENCHMARKS)}. Leave it out.")


OPTIONS: dict[str, Option] = {f.name: f.metadata["option"] for f in fields(Experiment)}
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Experiment)}
# Settings with an option of their own on the command line.
SHORTCUTS = {
    "epochs": Option(
        "Epochs a task; otherwise as many as the benchmark has.", ("--epochs",), type=int, applies="images"
    ),
    "steps": Option(
        "Of a suite of games: steps a game, all copies together.", ("--steps",), type=int, applies="games"
    ),
    "learners": Option(
        "How many learners instead of 5, each as wide as the parameters of a single one allow: the same as --set "
        "learners=3. Several values, 3,4,5, make a grid.",
        ("--learners",),
    ),
}
CONFIG = Option(
    "A TOML file with benchmark, method, seeds and settings, such as the best.toml of `kenyon search`. Options "
    "beside it win.",
    ("--config",),
    type=Path,
)


# ------------------------------------------------------------------------------------------------- TOML


@dataclass(frozen=True)
class SpecFile:
    """A TOML file that describes an experiment."""

    path: Path
    given: dict[str, Any] = field(default_factory=dict)  # fields of `Experiment`


def read_spec(path: Path | str) -> SpecFile:
    """Read a TOML file, and check the form of its entries."""
    import msgspec

    from kenyon.utils.files import as_path

    path = as_path("config", path)
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also of bytes that are no text
        raise ConfigError(f"{path} is not TOML ({error}). Correct it, or let `kenyon search` write it.") from None
    keys = {"benchmark": "benchmarks", "method": "methods", "settings": "settings"}
    keys |= {name: name for name in OPTIONS if name not in keys.values()}
    given: dict[str, Any] = {}
    for key, value in body.items():
        if key == "origin":
            continue
        if key not in keys:
            raise _misplaced(path, key, [*keys, "origin"])
        option = OPTIONS[keys[key]]
        try:
            value = msgspec.convert(value, option.form)
            given[keys[key]] = _listed(value) if option.kind == NAMES else value
        except ValueError:  # of msgspec too
            kind = option.kind or {int: "a whole number", bool: "true or false"}.get(option.form, "text")
            raise ConfigError(f"{path}: {key} must be {kind}, not {value!r}.") from None
    return SpecFile(path, given)


def _listed(value: str | list[str]) -> Names:
    names = tuple(name.strip() for name in (value.split(",") if type(value) is str else value))
    if not names or not all(names) or len(set(names)) != len(names):
        raise ValueError
    return names


def _misplaced(path: Path, key: str, keys: Iterable[str]) -> ConfigError:
    from kenyon.experiments.config import is_setting

    if is_setting(key):
        return ConfigError(f"{path}: {key} is a setting. Write it below a line [settings].")
    return ConfigError(f"{path}: {unknown('key of a configuration', key, keys)}")


def merge_spec(file: SpecFile | None, given: Mapping[str, Any]) -> Experiment:
    """Return the request of a file and of what is given with it, which takes precedence setting by setting."""
    base = dict(file.given) if file else {}
    changes = {name: value for name, value in given.items() if _is_given(name, value)}
    for name, what in (("benchmarks", "benchmark"), ("methods", "method")):
        here, there = changes.get(name), base.get(name)
        if file and here and there and set(here) != set(there):
            why = ": its settings were chosen for that" if name == "methods" else ""
            raise ConfigError(
                f"{file.path} is for {', '.join(there)}, not for {', '.join(here)}{why}. Leave the {what} out, or "
                "give the file of another choice."
            )
    settings = {**base.get("settings", {}), **changes.get("settings", {})}
    return Experiment.of(**{**base, **changes, "settings": settings})


def _is_given(name: str, value: Any) -> bool:
    """False for a value that is its default: a file may have another."""
    default = DEFAULTS[name]
    if name in ("benchmarks", "methods"):
        return value is not None
    return value is not default and not (type(value) in (str, bool, type(default)) and str(value) == str(default))


# ------------------------------------------------------------------------------------------------- command line


def from_command_line(given: Mapping[str, Any]) -> Experiment:
    """Return the request that options of the command line make, by their names there."""
    file = read_spec(given["config"]) if given.get("config") else None
    values = {
        name: option.parse(given[option.name or name])
        for name, option in OPTIONS.items()
        if name != "settings" and given.get(option.name or name) is not None
    }
    for name, resolve in (("benchmarks", resolved_benchmarks), ("methods", resolved_methods)):
        if name in values:
            values[name] = resolve(values[name])
    experiment = merge_spec(file, values)
    experiment = replace(
        experiment,
        benchmarks=resolved_benchmarks(experiment.benchmarks),
        methods=resolved_methods(experiment.methods),
    )
    return replace(experiment, settings={**experiment.settings, **_typed_settings(experiment, given)})


def _typed_settings(experiment: Experiment, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `--set` and of the options that stand for a setting."""
    from kenyon.experiments.config import is_suite, parse_setting, parse_settings, settings
    from kenyon.methods import find_method

    suites = [name for name in experiment.benchmarks if is_suite(name)]
    images = [name for name in experiment.benchmarks if name not in suites]
    for name in experiment.methods:
        find_method(name)

    def known(method: str) -> list[str]:
        return [
            *(settings(method) if images else ()),
            *(settings(method, games=True) if suites else ()),
        ]

    found = parse_settings(given.get("set_") or [], experiment.methods, known)
    for name, option in SHORTCUTS.items():
        if (text := given.get(name)) is None:
            continue
        flag = option.flags[0]
        if option.applies == "images" and suites:
            raise for_images(flag, suites)
        if option.applies == "games" and images:
            raise for_games(flag)
        if name in found:
            raise ConfigError(f"{name} is given twice: with {flag} and with --set.")
        if name == "learners" and not any(find_method(method).multi for method in experiment.methods):
            raise ConfigError(
                f"{flag} is for methods of several learners; {' and '.join(experiment.methods)} has one."
            )
        found[name] = parse_setting(name, str(text))
    return found


def resolved_benchmarks(names: Iterable[str], *, suites: bool = True) -> Names:
    """Return names of benchmarks; a user's file stands for the benchmark that it defines."""
    return tuple(named_benchmark(name, suites=suites) for name in names)


def named_benchmark(text: str, *, suites: bool = False) -> str:
    """Return the name of a benchmark, or of that in a user's file. `suites`: suites of games are allowed."""
    from kenyon.benchmarks.registry import BENCHMARKS, load_benchmark_file
    from kenyon.utils.user_code import is_user_file

    if is_user_file(text):
        return load_benchmark_file(Path(text))
    if text in BENCHMARKS:
        return text
    from kenyon.rl.suites import SUITE_BENCHMARKS

    if text not in SUITE_BENCHMARKS:
        raise unknown("benchmark", text, {*BENCHMARKS, *SUITE_BENCHMARKS})
    if not suites:
        raise ConfigError(
            f"{text} is a suite of games, for `kenyon run {text}`, `kenyon sweep`, `kenyon show`, `kenyon report` "
            "and `kenyon watch`. Name a benchmark of images here."
        )
    return text


def resolved_methods(names: Iterable[str]) -> Names:
    """Return names of methods; a user's file stands for all methods that it defines."""
    from kenyon.methods import load_method_file
    from kenyon.utils.user_code import is_user_file

    return tuple(
        method for name in names for method in (load_method_file(Path(name)) if is_user_file(name) else [name])
    )


def named_methods(text: str) -> list[str]:
    """Return the methods of a text with commas."""
    return list(resolved_methods(_names("method")(text)))
