"""Writing TOML, which Python only reads: plain values, tables and lists of tables.

A file that says what to run: `kenyon run --config best.toml`, `kenyon sweep many.toml`.

    benchmark = "digits"      # or ["r-cifar-100", "s-cifar-100"]
    method = "caf-ewc"        # or ["ewc", "caf-ewc"]
    seeds = 5                 # or [0, 3, 7]

    [settings]                # as with --set; a list makes a grid
    lambda_sp = 1e6

A sweep may also name suites of games, and then which of their games are learned, in which order:

    benchmark = "rl-mini"
    games = ["catch", "reach"]

Everything may be left out. A table `origin` tells where a choice comes from and decides nothing. What is said beside
the file wins, but for benchmark and method: settings that were chosen for others are refused.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kenyon.errors import ConfigError, unknown
from kenyon.experiments.spec import KINDS, settings
from kenyon.methods import METHODS
from kenyon.utils.files import as_path

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(body: Mapping[str, Any], comment: str = "") -> str:
    """A document of plain values (first, as TOML wants them), tables of such, and lists of tables, to any depth."""
    head = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*head, *_table(body, ())]).strip("\n") + "\n"


def _table(body: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in body.items():
        if not _is_table(value) and not _is_tables(value):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in body.items():
        inner = (*path, _key(name))
        if _is_table(value):
            yield from ("", f"[{'.'.join(inner)}]", *_table(value, inner))
        elif _is_tables(value):
            for one in value:
                yield from ("", f"[[{'.'.join(inner)}]]", *_table(one, inner))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_table, value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)  # nan, inf and -inf are TOML's own words
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _text(text: str) -> str:
    """JSON's escapes are TOML's, which also forbids the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


KEYS = ("benchmark", "method", "seeds", "games", "settings", "origin")
BENCHMARK, METHODS_RUN, SEEDS = "digits", ("finetune", "ewc", "caf-ewc"), 5  # where nobody says


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    benchmarks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: int | list[int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    games: tuple[str, ...] | None = None


def read_config(path: Path | str) -> ConfigFile:
    path = as_path("config", path)
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors mark it
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also of bytes that are no text
        raise ConfigError(f"{path} is not TOML ({error}). Mend it, or write it anew with `kenyon search`.") from None
    for name in body:
        if name not in KEYS:
            raise _misplaced(path, name)
    benchmarks, methods = _names(body.get("benchmark")), _names(body.get("method"))
    seeds, changes, games = body.get("seeds"), body.get("settings", {}), _names(body.get("games"))
    for fits, name, kind in (
        (benchmarks is not None, "benchmark", "a name in quotes, or a list of names, each once"),
        (methods is not None, "method", "a name in quotes, or a list of names, each once"),
        (seeds is None or _whole(seeds) or _all(seeds, int), "seeds", "how many, or a list of whole numbers"),
        (games is not None, "games", "a name in quotes, or a list of names, each once"),
        (isinstance(changes, dict), "settings", "a table: [settings], and below it name = value"),
    ):
        if not fits:
            raise ConfigError(f"{path}: {name} must be {kind}, not {body[name]!r}.")
    return ConfigFile(path, benchmarks or (), methods or (), seeds, changes, games or None)


def _names(value: Any) -> tuple[str, ...] | None:
    """The names that a key has, none where it is left out. None: what it has is no name, or no list of them."""
    if value is None:
        return ()
    names = value.split(",") if isinstance(value, str) else value
    if not _all(names, str):
        return None
    stripped = tuple(name.strip() for name in names)
    return stripped if stripped and all(stripped) and len(set(stripped)) == len(stripped) else None


def _misplaced(path: Path, name: str) -> ConfigError:
    if name in KINDS or any(name in settings(method) for method in METHODS):
        return ConfigError(f"{path}: {name} is a setting. Write it below a line [settings].")
    return ConfigError(f"{path}: {unknown('key of a configuration', name, KEYS)}")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


@dataclass(frozen=True)
class Asked:
    """What is to be run, from the file, from what was said beside it, and from what holds otherwise."""

    benchmarks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int | Sequence[int]
    settings: dict[str, Any]
    games: tuple[str, ...] | None = None  # of suites of games; None: all of them


def asked(
    config: ConfigFile | None,
    benchmarks: Sequence[str] | None,
    methods: Sequence[str] | None,
    seeds: int | Sequence[int] | None,
    overrides: Mapping[str, Any],
    *,
    games: bool = False,
) -> Asked:
    """`overrides` win over the file's settings one by one. `games`: whether suites of games may be asked for."""
    file = config or ConfigFile(Path())
    if file.games is not None and not games:
        raise ConfigError(f"{file.path}: games are for `kenyon sweep`. Leave them out, or give the file to a sweep.")
    if benchmarks and file.benchmarks and set(benchmarks) != set(file.benchmarks):
        raise ConfigError(
            f"{file.path} is for {', '.join(file.benchmarks)}, not for {', '.join(benchmarks)}. Leave the benchmark "
            "out, or give the file of another choice."
        )
    if methods and file.methods and set(methods) != set(file.methods):
        raise ConfigError(
            f"{file.path} is for {', '.join(file.methods)}, not for {', '.join(methods)}: its settings were chosen "
            "for that. Leave the method out, or give the file of another choice."
        )
    chosen = seeds if seeds is not None else file.seeds
    return Asked(
        tuple(benchmarks or file.benchmarks or [BENCHMARK]),
        tuple(file.methods or METHODS_RUN if methods is None else methods),
        SEEDS if chosen is None else chosen,
        file.settings | dict(overrides),
        file.games,
    )
