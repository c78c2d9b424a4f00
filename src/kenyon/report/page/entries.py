"""What a report is made of: results with their labels and files, benchmark by benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE
from kenyon.experiments.store import result_files
from kenyon.metrics import Summary
from kenyon.report.markdown import ORDER
from kenyon.report.page.mixed import File, labels
from kenyon.report.tables import REFERENCES

OF_ALL, OF_A_METHOD = 24, 8  # most results in a chart


@dataclass(frozen=True)
class Entry:
    """One result, as the page shows it."""

    label: str  # unique in its benchmark
    result: Result
    file: str  # relative to the folder above the results: what a reader can find again
    folder: Path  # of the file; analyses are in its folder `analysis`

    @cached_property
    def aac(self) -> Summary | None:
        return self.result.aac

    @property
    def compared(self) -> bool:
        """Whether it can be the best: not what others are measured against."""
        return self.result.method not in REFERENCES


@dataclass(frozen=True)
class Group:
    """The results of one benchmark."""

    benchmark: str
    entries: Sequence[Entry]

    @property
    def shown(self) -> list[Entry]:
        """Without the reference for forward transfer, whose average accuracy means nothing, unless it is all."""
        return [e for e in self.entries if e.result.method != REFERENCE] or list(self.entries)

    @cached_property
    def drawn(self) -> list[Entry]:
        """Those that charts have room for: of many, the best points a method and the best of all."""
        rated = [(aac.mean, e) for e in self.shown if (aac := e.aac) is not None]
        rated.sort(key=lambda pair: -pair[0])
        of_method: dict[str, int] = {}
        kept: set[str] = set()
        for _, entry in rated:
            method = entry.result.method
            of_method[method] = of_method.get(method, 0) + 1
            if of_method[method] <= OF_A_METHOD and len(kept) < OF_ALL:
                kept.add(entry.label)
        return [e for e in self.shown if e.label in kept]


def collect(path: Path, *, apart: bool = False) -> list[Group]:
    """All results at or below a path, checked and labelled. Refuses what does not belong in one table."""
    top = path.absolute().parent if path.is_dir() else path.absolute().parent.parent
    found_files = [(name.absolute().relative_to(top).as_posix(), name) for name in result_files(path)]
    files = [File(shown, Result.load(name), name) for shown, name in found_files]
    for file in files:
        check(file.result, file.name)
    found: dict[str, list[Entry]] = {}
    for file, label in labels(files, apart=apart):
        found.setdefault(file.result.benchmark, []).append(Entry(label, file.result, file.name, file.path.parent))
    return [Group(name, sorted(some, key=_place)) for name, some in sorted(found.items())]


def _place(entry: Entry) -> tuple[int, str, str]:
    """Simple methods first; the points of a method in the order of their values."""
    method = entry.result.method
    values = [f"{v:030.10f}" if isinstance(v, (int, float)) else str(v) for v in entry.result.point.values()]
    return ORDER.index(method) if method in ORDER else len(ORDER), method, " ".join(values) + entry.label


def check(result: Result, file: str) -> None:
    """That the parts of a result have the shapes that everything after relies on."""
    try:
        _check(result)
    except _Wrong as wrong:
        raise ResultsError(f"{file} is not a Kenyon result: {wrong}. Move it away or run anew.") from None


class _Wrong(Exception):
    pass


def _need(fits: bool, what: str) -> None:
    if not fits:
        raise _Wrong(what)


def _check(result: Result) -> None:
    config = result.config
    _need(isinstance(config, dict), "config is no object")
    for name in ("benchmark", "method"):
        _need(isinstance(config.get(name), str), f"config.{name} is no text")
    for name in ("training", "architecture", "hyper"):
        _need(isinstance(config.get(name), dict), f"config.{name} is no object")
    _need(_whole(config.get("tasks")), "config.tasks is no whole number")
    _need(_whole(config["training"].get("epochs")), "config.training.epochs is no whole number")
    _need(_whole(result.parameters), "parameters is no whole number")
    _need(isinstance(result.point, dict), "point is no object")
    shapes = set()
    for run in result.runs:
        where = f"the run of seed {run.seed!r:.40}"
        _need(_whole(run.seed), f"{where} has no whole number as seed")
        _need(_list(run.tasks, str), f"{where} has no list of task names")
        T = len(run.tasks)
        _need(_matrix(run.accuracy, T), f"accuracy of {where} is not rows of {T} numbers")
        own = run.own_accuracy
        width = len(own[0]) if isinstance(own, list) and own and isinstance(own[0], list) else 0
        _need(_matrix(own, width) and len(own) in (0, T), f"own_accuracy of {where} is not {T} rows of numbers")
        for values in (run.cosine, run.euclidean):
            _need(_numbers(values) and len(values) in (0, T), f"diversity of {where} is not {T} numbers")
        _need(run.diverged is None or (_list(run.diverged, int) and len(run.diverged) == 2), f"diverged of {where}")
        if run.complete:
            _need(bool(run.accuracy) and T > 0, f"{where} has no accuracy, but did not diverge")
            shapes.add((len(run.accuracy), T, len(own), width))
    _need(len(shapes) < 2, "its runs have different numbers of tasks or learners")
    for seed, values in result.alone.items():
        tasks = {len(run.tasks) for run in result.runs if run.seed == seed}
        _need(_numbers(values) and tasks <= {len(values)}, f"alone of seed {seed} is not a number a task")
    for fleet in result.fleets:
        _need(_list(fleet.seeds, int) and _seconds(fleet.seconds), "a fleet has no seeds or no seconds")
        _need(isinstance(fleet.versions, dict), "a fleet has no versions")
        texts = (fleet.device, fleet.precision, fleet.finished, *fleet.versions.values())
        _need(all(isinstance(t, str) for t in texts), "device, precision, date or versions of a fleet are no text")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64


def _number(value: Any) -> bool:
    """NaN, not measured, is one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) > 1e15


def _seconds(value: Any) -> bool:
    return _number(value) and value >= 0


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_number, values))


def _list(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(v, kind) for v in values)


def _matrix(rows: Any, width: int) -> bool:
    return isinstance(rows, list) and all(_numbers(row) and len(row) == width for row in rows)
