"""Every figure and table of results in the paper by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kenyon.errors import unknown
from kenyon.reproduce.figure import Figure
from kenyon.reproduce.scale import Scale
from kenyon.reproduce.wanted import Found, Place, Wanted

CIFAR = ("s-cifar-100", "r-cifar-100", "r-cifar-10-100")


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of the paper: the runs that it wants, and what it makes of them."""

    name: str
    shows: str
    cost: str  # of all its runs at paper scale, on one H200
    wanted: Callable[[Scale], Sequence[Wanted]]
    made: Callable[[Found, Place], Figure]


REPRODUCTIONS: dict[str, Reproduction] = {}


def reproduction(
    name: str, shows: str, cost: str, wanted: Callable[[Scale], Sequence[Wanted]] = lambda scale: ()
) -> Callable[[Callable[[Found, Place], Figure]], Callable[[Found, Place], Figure]]:
    """Register a function from results to a figure; `wanted` names the runs that it needs."""

    def add(made: Callable[[Found, Place], Figure]) -> Callable[[Found, Place], Figure]:
        REPRODUCTIONS[name] = Reproduction(name, shows, cost, wanted, made)
        return made

    return add


def find_reproduction(name: str) -> Reproduction:
    """The figure or table of that name; otherwise an error that names the nearest ones."""
    if name not in REPRODUCTIONS:
        raise unknown("figure or table", name, [*REPRODUCTIONS, "all"])
    return REPRODUCTIONS[name]
