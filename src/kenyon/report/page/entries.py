"""What a report is made of: results with their labels and files, benchmark by benchmark.

The sections of a benchmark's part of the page: a registry, name -> function from its results to what is shown.

    from kenyon.report.page import Section, section

    @section("spread")
    def spread(group):
        bars = [{"name": e.label, "value": e.result.aac.sem} for e in group.shown if e.result.aac]
        return Section("Spread", [{"kind": "bars", "title": "Standard error", "x": "per cent", "data": bars}])

Sections appear in the order in which they were registered. `kenyon.utils.views` says what a view is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kenyon.experiments.compare import File, labels, reported
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE
from kenyon.methods.registry import place
from kenyon.metrics import Summary
from kenyon.report.tables import REFERENCES, point_text
from kenyon.utils.views import View

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

    benchmark: str  # of a search with its protocol
    entries: Sequence[Entry]

    @property
    def held_out(self) -> bool:
        """Whether these are runs of a search, whose accuracies are not of test data."""
        return any(e.result.held_out for e in self.entries)

    @property
    def shown(self) -> list[Entry]:
        """Without the reference for forward transfer, whose average accuracy means nothing, unless it is all."""
        return [e for e in self.entries if e.result.method != REFERENCE] or list(self.entries)

    @cached_property
    def variants(self) -> dict[str, list[Entry]]:
        """Method -> points of its grid, where the method also has a result of its own: they stand below it."""
        own = {e.result.method for e in self.shown if not e.result.point}
        found: dict[str, list[Entry]] = {}
        for e in self.shown:
            if e.result.point and e.result.method in own:
                found.setdefault(e.result.method, []).append(e)
        return found

    @cached_property
    def main(self) -> list[Entry]:
        """Those shown, without the variants."""
        return [e for e in self.shown if not e.result.point or e.result.method not in self.variants]

    @cached_property
    def drawn(self) -> list[Entry]:
        """Those that charts have room for: every method, and of many points of grids the best a method and of all."""
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
    """All results at or below a path, labelled. Refuses what does not belong in one table."""
    top = path.absolute().parent if path.is_dir() else path.absolute().parent.parent
    files = [File(name.absolute().relative_to(top).as_posix(), result, name) for name, result in reported(path)]
    titles: dict[str, list[File[Result]]] = {}
    for file in files:
        titles.setdefault(file.result.title, []).append(file)
    found = {
        title: [Entry(label, file.result, file.name, file.path.parent) for file, label in labels(some, apart=apart)]
        for title, some in titles.items()
    }
    return [Group(name, sorted(some, key=_place)) for name, some in sorted(found.items())]


def _place(entry: Entry) -> tuple[tuple[int, int, str], bool, str]:
    """Simple methods first; below a method its points, in the order of their values."""
    point = entry.result.point.items()
    values = [f"{n} {v:030.10f}" if isinstance(v, (int, float)) else f"{n} {v}" for n, v in point]
    return place(entry.result.method), bool(entry.result.point), " ".join(values) + entry.label


def values_of(entry: Entry) -> str:
    """A point's name where its method is known; it may be broken between values."""
    return point_text(entry.result.method, entry.label).replace(",", ", ")


@dataclass(frozen=True)
class Section:
    title: str
    views: Sequence[View]
    note: str = ""
    small: bool = False  # views beside one another, many of a kind, with one choice of frame for all heat maps


# None, or an empty list, where a section has nothing to say about these results.
Maker = Callable[[Group], Section | list[Section] | None]
SECTIONS: dict[str, Maker] = {}


def section(name: str) -> Callable[[Maker], Maker]:
    """Register a section under a name; a name that is there already is replaced, in its place."""

    def add(maker: Maker) -> Maker:
        SECTIONS[name] = maker
        return maker

    return add


def sections_of(group: Group) -> list[Section]:
    found: list[Section] = []
    for maker in SECTIONS.values():
        made = maker(group)
        found += made if isinstance(made, list) else [made] if made is not None else []
    return found
