"""Labels for results, and the refusal to put into one table what was made under different settings.

In one benchmark the number of tasks and the training regime must be the same for all methods, and all settings the
same within a method, except those that its grid varies: they are in the label. `apart` labels instead of refusing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

from kenyon.errors import ResultsError
from kenyon.experiments.results import Kept, Result, point_label, value_text
from kenyon.experiments.store import OWN, result_files, settled

Differences = dict[str, list[tuple[str, list[str]]]]  # setting -> values, each with the files that have it
ASIDE = ("smoke", "quick")  # folders of scales below a results folder
TOLD = 6  # differences named in the error; the rest are counted


K = TypeVar("K", bound=Kept[Any, Any])


@dataclass(frozen=True)
class File(Generic[K]):
    name: str  # as the reader knows it
    result: K
    path: Path


def reported(path: Path) -> list[tuple[Path, Result]]:
    """The results at or below a path, of which there is at least one. Runs that settings were chosen by, and those of
    smaller scales that `kenyon reproduce` puts aside, are none of a benchmark: they are here only where there is
    nothing else.
    """
    files = result_files(path)
    whole = [file for file in files if path.is_file() or file.relative_to(path).parts[0] not in ASIDE]
    found = [(file, Result.load(file)) for file in whole or files]
    return [(file, result) for file, result in found if not result.held_out] or found


def labels(files: Sequence[File[K]], *, apart: bool) -> Iterator[tuple[File[K], str]]:
    """Every file with a label that is unique in its benchmark, by benchmark and method."""
    ordered = sorted(files, key=lambda f: (f.result.benchmark, f.result.method, f.name))
    for benchmark, some in groupby(ordered, key=lambda f: f.result.benchmark):
        group = list(some)
        methods = {m: list(of) for m, of in groupby(group, key=lambda f: f.result.method)}
        common = _different([f for f in group if f.result.method != "random-init"])
        common = {n: v for n, v in common.items() if n == "tasks" or n.startswith("training.")}
        own = {m: _different(of) for m, of in methods.items()}
        twice = [of for m, of in methods.items() for of in _twice(of, own[m])]
        if not apart and (any(own.values()) or common or twice):
            raise _refusal(benchmark, common, own, twice)
        folders = {f.name: folder for of in twice for f, folder in zip(of, _folders(of), strict=True)}
        for method, of in methods.items():
            names = {**common, **own[method]}
            for file in of:
                yield file, _label(file, names, folders.get(file.name))


def _named(file: File[K]) -> set[str]:
    """Last parts of the names of the settings that the label of a point tells. With learners comes their width."""
    names = set(file.result.point)
    return names | {"width"} if "learners" in names else names


def _different(files: Sequence[File[K]]) -> Differences:
    """The settings in which files differ though their labels do not tell them, each with [(value, its files)]."""
    settings = [(settled(f.result.config), _named(f), f.name) for f in files]
    apart = {"method", "benchmark", f"{OWN}method"}  # every method has its own code
    names = sorted({name for values, _, _ in settings for name in values} - apart)
    found: Differences = {}
    for name in names:
        values: dict[str, list[str]] = {}
        for setting, told, file in settings:
            if name.rpartition(".")[2] not in told:
                values.setdefault(_text(setting, name), []).append(file)
        if len(values) > 1:
            found[name] = list(values.items())
    return found


def _text(settings: dict[str, Any], name: str) -> str:
    return value_text(settings[name]) if name in settings else "not set"


def _twice(files: Sequence[File[K]], differences: dict[str, Any]) -> list[list[File[K]]]:
    """Files that would have the same label even apart."""
    found: dict[str, list[File[K]]] = {}
    for file in files:
        found.setdefault(_label(file, differences, None), []).append(file)
    return [same for same in found.values() if len(same) > 1]


def _folders(files: Sequence[File[K]]) -> list[str]:
    """Of each file, the part of its folders in which it differs from the others."""
    parts = [PurePosixPath(f.name).parts for f in files]
    width = max(map(len, parts))
    padded = [p + ("",) * (width - len(p)) for p in parts]
    places = [i for i, column in enumerate(zip(*padded, strict=True)) if len(set(column)) > 1]
    return ["/".join(p[i] for i in places if p[i]) for p in padded]


def _label(file: File[K], differences: dict[str, Any], folder: str | None) -> str:
    values = settled(file.result.config)
    shown = dict(file.result.point)
    for name in differences:
        short = name.rpartition(".")[2]
        shown.setdefault(short, values.get(name, "not set"))
    if folder:
        shown["in"] = folder
    return point_label(file.result.method, shown)


def _refusal(
    benchmark: str,
    common: Differences,
    own: dict[str, Differences],
    twice: list[list[File[K]]],
) -> ResultsError:
    told = [_told("", name, values) for name, values in common.items()]
    told += [
        _told(f"{method}: ", name, values)
        for method, settings in own.items()
        for name, values in settings.items()
        if name not in common
    ]
    told += [f"{same[0].result.label} is there more than once: {', '.join(f.name for f in same)}" for same in twice]
    rest = f"\n  and {len(told) - TOLD} more" if len(told) > TOLD else ""
    lines = "".join(f"\n  {line}" for line in told[:TOLD])
    return ResultsError(
        f"These results of {benchmark} do not belong in one table:{lines}{rest}\n"
        "Name a folder that holds only one of them, or use --apart, which labels them by what differs."
    )


def _told(method: str, name: str, values: list[tuple[str, list[str]]]) -> str:
    def where(some: list[str]) -> str:
        return some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} more"

    return f"{method}{name} is " + ", ".join(f"{value} in {where(some)}" for value, some in values)
