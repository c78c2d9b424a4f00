"""Results of a report by benchmark, with labels and files, and the registry of a benchmark's sections.

A section is a function from the results of a benchmark to views:

    from kenyon.report.page import Section, section

    @section("spread")
    def spread(group):
        bars = [{"name": e.label, "value": e.result.aac.sem} for e in group.shown if e.result.aac]
        return Section("Spread", [{"kind": "bars", "title": "Standard error", "x": "per cent", "data": bars}])

Sections appear in the order of their registration. `kenyon.utils.views` describes views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kenyon.experiments.results import Result
from kenyon.methods.registry import place
from kenyon.metrics import Summary
from kenyon.report.tables import REFERENCE, REFERENCES, point_text
from kenyon.utils.views import View

OF_ALL, OF_A_METHOD = 24, 8  # most results in a chart
EXACT = 15  # decimals of values that the page rounds itself, to agree with the tables


@dataclass(frozen=True)
class Entry:
    """One result of the page."""

    label: str  # unique in its benchmark
    result: Result
    file: str  # relative to the parent of the results folder, to find it again
    folder: Path  # of the file; analyses are in its folder `analysis`

    @cached_property
    def aac(self) -> Summary | None:
        return self.result.aac

    @property
    def compared(self) -> bool:
        """False for references, which cannot be the best."""
        return self.result.method not in REFERENCES


@dataclass(frozen=True)
class Group:
    """The results of one benchmark."""

    benchmark: str  # of a search with its protocol
    entries: Sequence[Entry]

    @property
    def held_out(self) -> bool:
        """True for runs of a search, whose accuracies are not of test data."""
        return any(e.result.held_out for e in self.entries)

    @property
    def shown(self) -> list[Entry]:
        """Entries without the reference of forward transfer, unless there are no others."""
        return [e for e in self.entries if e.result.method != REFERENCE] or list(self.entries)

    @cached_property
    def variants(self) -> dict[str, list[Entry]]:
        """Method -> its grid points, for methods that also have a result without a grid."""
        own = {e.result.method for e in self.shown if not e.result.point}
        found: dict[str, list[Entry]] = {}
        for e in self.shown:
            if e.result.point and e.result.method in own:
                found.setdefault(e.result.method, []).append(e)
        return found

    @cached_property
    def main(self) -> list[Entry]:
        """Shown entries without the variants."""
        return [e for e in self.shown if not e.result.point or e.result.method not in self.variants]

    @cached_property
    def drawn(self) -> list[Entry]:
        """Entries of charts: every method, and of many grid points the best of each method and of all."""
        rated = [(aac.mean, e) for e in self.main if (aac := e.aac) is not None]
        rated.sort(key=lambda pair: -pair[0])
        of_method: dict[str, int] = {}
        kept: set[str] = set()
        for _, entry in rated:
            method = entry.result.method
            of_method[method] = of_method.get(method, 0) + 1
            if not entry.result.point or (of_method[method] <= OF_A_METHOD and len(kept) < OF_ALL):
                kept.add(entry.label)
        return [e for e in self.main if e.label in kept]


def collect(path: Path, *, apart: bool = False) -> list[Group]:
    """Read and label all results at or below a path. Raise an error for results that cannot share a table."""
    from kenyon.experiments.compare import File, labels, reported

    top = path.absolute().parent if path.is_dir() else path.absolute().parent.parent
    files = [File(name.absolute().relative_to(top).as_posix(), result, name) for name, result in reported(path)]
    titles: dict[str, list[File]] = {}
    for file in files:
        titles.setdefault(file.result.title, []).append(file)
    found = {
        title: [Entry(label, file.result, file.name, file.path.parent) for file, label in labels(some, apart=apart)]
        for title, some in titles.items()
    }
    return [Group(name, sorted(some, key=_place)) for name, some in sorted(found.items())]


def _place(entry: Entry) -> tuple[tuple[int, int, str], bool, str]:
    """Sort key: simple methods first; after a method its grid points, in the order of their values."""
    point = entry.result.point.items()
    values = [f"{n} {v:030.10f}" if isinstance(v, (int, float)) else f"{n} {v}" for n, v in point]
    return place(entry.result.method), bool(entry.result.point), " ".join(values) + entry.label


def number(value: float | None, digits: int = 4) -> float | None:
    """Round a number for JSON; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def numbers(values: Any, digits: int = 4) -> Any:
    """Round an array for JSON, as nested lists; None for values that are not finite."""
    rounded = np.round(np.asarray(values, dtype=float), digits)
    known: Any = rounded.astype(object)
    known[~np.isfinite(rounded)] = None
    return known.tolist()


def bar(label: str, summary: Summary) -> dict[str, Any]:
    """A bar of a view: mean, standard error and single runs."""
    return {
        "name": label,
        "value": number(summary.mean, EXACT),
        "error": number(summary.sem, EXACT),
        "points": [v for v in numbers(summary.runs) if v is not None],
    }


def values_of(entry: Entry) -> str:
    """The values of a grid point, with spaces at which the line may break."""
    return point_text(entry.result.method, entry.label).replace(",", ", ")


@dataclass(frozen=True)
class Section:
    """A titled part of a benchmark's results."""

    title: str
    views: Sequence[View]
    note: str = ""
    small: bool = False  # many small views side by side, with one choice of frame for all heat maps


Maker = Callable[[Group], Section | list[Section] | None]  # None or []: no such section for these results
SECTIONS: dict[str, Maker] = {}


def section(name: str) -> Callable[[Maker], Maker]:
    """Register a section under a name; a section of the same name is replaced, in its place."""

    def add(maker: Maker) -> Maker:
        SECTIONS[name] = maker
        return maker

    return add


def sections_of(group: Group) -> list[Section]:
    found: list[Section] = []
    for maker in SECTIONS.values():
        made = maker(group) or []
        found += [made] if isinstance(made, Section) else made
    return found
