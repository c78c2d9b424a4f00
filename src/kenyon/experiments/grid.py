"""Grid points and run specifications: settings with several values, and the runs they make.

A *grid point* is one combination of values: a configuration. A *run specification* is a grid point and a seed. Equal
seeds have equal first weights, task orders and dropout at every point, so points are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from kenyon.data import SearchProtocol
from kenyon.errors import ConfigError
from kenyon.experiments.config import Config, configure, is_suite, settings
from kenyon.experiments.results import point_label, point_name, value_text

LARGEST = 10_000  # runs of one call; more are likely a mistake


@dataclass(frozen=True)
class GridPoint:
    """A configuration, and its values of the settings that were given as lists."""

    config: Config
    varied: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return point_name(self.varied)

    @property
    def label(self) -> str:
        return point_label(self.config.method, self.varied)


@dataclass(frozen=True)
class RunSpec:
    """A grid point and a seed: one run."""

    point: GridPoint
    seed: int

    @property
    def config(self) -> Config:
        return self.point.config


def listed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as plain values, and sequences and arrays of values as lists."""
    return {name: _listed(name, value) for name, value in overrides.items()}


def _listed(name: str, value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, (list, tuple, range)):
        return value
    values = [_plain(one) for one in value]
    if not values:
        raise ConfigError(f"{name} has an empty list of values. Give at least one, or leave {name} out.")
    seen: set[str] = set()
    for text in map(value_text, values):
        if text in seen:
            raise ConfigError(f"{name} has the value {text} twice. Give each value once.")
        seen.add(text)
    return values


def _plain(value: Any) -> Any:
    """Return arrays and numbers of NumPy and PyTorch as Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def lists_of(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that vary: those given as lists."""
    return {name: value for name, value in given.items() if type(value) is list}


def expand(
    benchmark: str,
    method: str,
    given: Mapping[str, Any],
    *,
    tasks: int | None = None,
    games: Sequence[str] | None = None,
    search: SearchProtocol | None = None,
) -> list[GridPoint]:
    """Return a point for each combination of the listed settings, of those in `given` that the method has."""
    names = settings(method, games=is_suite(benchmark))
    taken = {name: given[name] for name in names if name in given}
    lists = lists_of(taken)
    points = []
    for values in product(*lists.values()):
        varied = dict(zip(lists, values, strict=True))
        config = configure(benchmark, method, tasks=tasks, games=games, overrides={**taken, **varied}, search=search)
        points.append(GridPoint(config, varied))
    return points


def check_size(methods: Sequence[str], given: Mapping[str, Any], seeds: int, *, games: bool = False) -> None:
    """Refuse more runs than `LARGEST`, before the points of a grid are listed."""
    sizes = {name: len(values) for name, values in lists_of(given).items()}
    points = sum(prod(sizes.get(name, 1) for name in settings(method, games=games)) for method in methods)
    if points * seeds > LARGEST:
        what = f"The grid has {points:,} points; with {seeds:,} seeds each" if sizes else f"With {seeds:,} seeds"
        raise ConfigError(
            f"{what} that is {points * seeds:,} runs, and one call takes at most {LARGEST:,}. Name fewer values or "
            "seeds, or ask for one part after another: what is finished stays."
        )


def reference_for(point: GridPoint, references: Sequence[GridPoint]) -> GridPoint | None:
    """Return the reference trained with the same values, as far as it has the settings."""
    for reference in references:
        if all(point.varied.get(name) == value for name, value in reference.varied.items()):
            return reference
    return None
