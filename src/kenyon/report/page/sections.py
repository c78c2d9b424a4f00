"""The sections of a benchmark's part of the page: a registry, name -> function from its results to what is shown.

    from kenyon.report.page import Section, section

    @section("spread")
    def spread(group):
        bars = [{"name": e.label, "value": e.result.aac.sem} for e in group.shown if e.result.aac]
        return Section("Spread", [{"kind": "bars", "title": "Standard error", "x": "per cent", "data": bars}])

Sections appear in the order in which they were registered. `kenyon.views` says what a view is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kenyon.report.page.entries import Group
from kenyon.views import View


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
