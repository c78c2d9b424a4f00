"""Saved results for tables: found below a folder, grouped by benchmark, and labelled.

In one table the number of tasks and the regime of a benchmark must be equal for all methods, and all settings equal
within a method, except those that its grid varies: they are in the label. `apart=True` adds what differs to labels
instead of refusing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from kenyon.errors import ResultsError
from kenyon.experiments.results import GameResult, Result, point_label, value_text
from kenyon.experiments.store import OWN, files_below, flat_settings, result_files
from kenyon.rl.scores import Measured, measured, reference

Differences = dict[str, list[tuple[str, list[str]]]]  # setting -> values, each with the files that have it
ASIDE = ("smoke", "quick")  # folders of smaller scales below a results folder
SHOWN = 6  # differences in a message; the rest are counted
FINE_TUNING = "finetune"  # scores of games are normalized by it
# Settings of games that matter to methods with penalties on weights only.
HOLDING = ("importance_rollouts", "importance_steps", "anchors", "penalties_from")


@dataclass(frozen=True)
class File:
    name: str  # shown to the user
    result: Any  # Result or GameResult
    path: Path


# ------------------------------------------------------------------------------------------------- finding


def reported(path: Path) -> list[tuple[Path, Result]]:
    """Return the results of images at or below a path. Raises ResultsError if there are none.

    Runs of a search, and those of smaller scales of `kenyon reproduce`, are returned only if there is nothing else.
    """
    files = result_files(path)
    whole = [file for file in files if path.is_file() or file.relative_to(path).parts[0] not in ASIDE]
    found = [(file, Result.load(file)) for file in whole or files]
    return [(file, result) for file, result in found if not result.held_out] or found


def load_results(path: Path) -> dict[str, dict[str, Result]]:
    """Return all results of images at or below a path: benchmark -> label -> result, points ordered by value."""
    files = [File(name.as_posix(), result, name) for name, result in reported(path)]
    files.sort(key=lambda f: (f.result.benchmark, f.result.method, list(f.result.point.items())))
    groups: dict[str, list[File]] = {}
    for file in files:
        groups.setdefault(file.result.title, []).append(file)
    found: dict[str, dict[str, Result]] = {}
    for title, some in groups.items():
        named = {id(file): label for file, label in labels(some, apart=True)}
        found[title] = {named[id(file)]: file.result for file in some}
    return found


def saved_scores(path: Path) -> dict[str, dict[str, File]]:
    """Return all scores of games at or below a path with their files: suite -> label -> file. Each sequence of games
    has an entry of its own.
    """
    paths = [path] if path.name == GameResult.FILE else files_below(path, GameResult.FILE) if path.is_dir() else []
    groups: dict[str, dict[str, list[File]]] = {}  # suite -> games -> files
    for file in (File(name.as_posix(), GameResult.load(name), name) for name in paths):
        groups.setdefault(file.result.benchmark, {}).setdefault(", ".join(file.result.games), []).append(file)
    return {
        suite if len(some) == 1 else f"{suite} ({games})": {label: file for file, label in labels(files, apart=True)}
        for suite, some in groups.items()
        for games, files in some.items()
    }


def load_scores(path: Path) -> dict[str, dict[str, GameResult]]:
    """Return all scores of games at or below a path: suite -> label -> result."""
    return {suite: {label: file.result for label, file in some.items()} for suite, some in saved_scores(path).items()}


def has_images(path: Path) -> bool:
    """True if a path with scores of games has results of images too."""
    return path.name != GameResult.FILE and (path.is_file() or bool(files_below(path, Result.FILE)))


# ------------------------------------------------------------------------------------------------- labels


def labels(files: Sequence[File], *, apart: bool) -> Iterator[tuple[File, str]]:
    """Yield every file with a label that is unique in its benchmark, by benchmark and method."""
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


def _named(file: File) -> set[str]:
    """Return the last parts of the names of settings in a point's label. Learners imply their width."""
    names = set(file.result.point)
    return names | {"width"} if "learners" in names else names


def _different(files: Sequence[File]) -> Differences:
    """Return the settings that differ between files and are not in their labels."""
    settings = [(flat_settings(f.result.config), _named(f), f.name) for f in files]
    excluded = {"method", "benchmark", f"{OWN}method"}  # each method has its own code
    names = sorted({name for values, _, _ in settings for name in values} - excluded)
    found: Differences = {}
    for name in names:
        values: dict[str, list[str]] = {}
        for setting, labelled, file in settings:
            if name.rpartition(".")[2] not in labelled:
                values.setdefault(_text(setting, name), []).append(file)
        if len(values) > 1:
            found[name] = list(values.items())
    return found


def _text(settings: dict[str, Any], name: str) -> str:
    return value_text(settings[name]) if name in settings else "not set"


def _twice(files: Sequence[File], differences: dict[str, Any]) -> list[list[File]]:
    """Return groups of files that have the same label even with their differences."""
    found: dict[str, list[File]] = {}
    for file in files:
        found.setdefault(_label(file, differences, None), []).append(file)
    return [same for same in found.values() if len(same) > 1]


def _folders(files: Sequence[File]) -> list[str]:
    """Return for each file the parts of its path in which it differs from the others."""
    parts = [PurePosixPath(f.name).parts for f in files]
    width = max(map(len, parts))
    padded = [p + ("",) * (width - len(p)) for p in parts]
    places = [i for i, column in enumerate(zip(*padded, strict=True)) if len(set(column)) > 1]
    return ["/".join(p[i] for i in places if p[i]) for p in padded]


def _label(file: File, differences: dict[str, Any], folder: str | None) -> str:
    values = flat_settings(file.result.config)
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
    twice: list[list[File]],
) -> ResultsError:
    lines = [_difference("", name, values) for name, values in common.items()]
    lines += [
        _difference(f"{method}: ", name, values)
        for method, settings in own.items()
        for name, values in settings.items()
        if name not in common
    ]
    lines += [f"{same[0].result.label} is there more than once: {', '.join(f.name for f in same)}" for same in twice]
    rest = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    listed = "".join(f"\n  {line}" for line in lines[:SHOWN])
    return ResultsError(
        f"These results of {benchmark} do not belong in one table:{listed}{rest}\n"
        "Name a folder that holds only one of them, or use --apart, which labels them by what differs."
    )


def _difference(method: str, name: str, values: list[tuple[str, list[str]]]) -> str:
    def where(some: list[str]) -> str:
        return some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} more"

    return f"{method}{name} is " + ", ".join(f"{value} in {where(some)}" for value, some in values)


# ------------------------------------------------------------------------------------------------- games


def measures(results: Mapping[str, GameResult]) -> dict[str, Measured]:
    """Return NAR, NP and NS by label, normalized by fine-tuning on the same games under the same regime. Results
    without such a fine-tuning are left out.
    """
    found = {}
    for name, result in results.items():
        tuned = _fine_tuning(result, results)
        if tuned is not None and result.complete_runs:
            with suppress(ResultsError):  # it never scored in some game: see `unmeasured`
                best = reference([run.matrix for run in tuned.complete_runs], tuned.games)
                found[name] = measured([run.matrix for run in result.complete_runs], best)
    return found


def unmeasured(results: Mapping[str, GameResult]) -> list[str]:
    """Return why there is no NAR, NP and NS though there are results of fine-tuning."""
    reasons = []
    for result in results.values():
        if result.method == FINE_TUNING and result.complete_runs:
            try:
                reference([run.matrix for run in result.complete_runs], result.games)
            except ResultsError as error:
                reasons.append(str(error))
    return list(dict.fromkeys(reasons))


def _fine_tuning(result: GameResult, results: Mapping[str, GameResult]) -> GameResult | None:
    for other in results.values():
        if other.method == FINE_TUNING and other.complete_runs and _played(other) == _played(result):
            return other
    return None


def _played(result: GameResult) -> tuple[Any, ...]:
    """Return games and regime, without settings that matter to methods with penalties on weights only."""
    training = {n: v for n, v in result.config["training"].items() if n not in HOLDING}
    return result.games, training
