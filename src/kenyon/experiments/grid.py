"""Grids: settings with several values, and the points and cells they make.

A *point* is one combination of values: a configuration. A *cell* is a point and a seed: one run. Equal seeds have
equal first weights, task orders and dropout at every point, so points are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, Generic, TypeVar

from kenyon.data import SearchProtocol
from kenyon.errors import ConfigError
from kenyon.experiments.results import point_label, point_name, value_text
from kenyon.experiments.spec import Config, Configured, configure, settings

LARGEST = 10_000  # runs of one call; a slip of the hand is more likely than the wish for more


C = TypeVar("C", bound=Configured)
Co = TypeVar("Co", bound=Configured, covariant=True)


@dataclass(frozen=True)
class PointOf(Generic[Co]):
    """A configuration, and its values of the settings that were given as lists; without a grid there are none."""

    config: Co
    varied: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return point_name(self.varied)

    @property
    def label(self) -> str:
        return point_label(self.config.method, self.varied)


@dataclass(frozen=True)
class CellOf(Generic[Co]):
    """One run."""

    point: PointOf[Co]
    seed: int

    @property
    def config(self) -> Co:
        return self.point.config


# Of images, and of whatever is learned.
Point = PointOf[Config]
Cell = CellOf[Config]
AnyPoint = PointOf[Configured]
AnyCell = CellOf[Configured]


def listed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with lists as lists, whatever sequence or array they were given as."""
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
    """NumPy's and PyTorch's arrays and numbers as Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def expand(
    benchmark: str,
    method: str,
    given: Mapping[str, Any],
    *,
    tasks: int | None = None,
    search: SearchProtocol | None = None,
) -> list[Point]:
    """Every combination of the listed settings that the method has, in the order of its settings."""

    def configured(values: dict[str, Any]) -> Config:
        return configure(benchmark, method, tasks=tasks, overrides=values, search=search)

    return combined({name: given[name] for name in settings(method) if name in given}, configured)


def combined(mine: Mapping[str, Any], configured: Callable[[dict[str, Any]], C]) -> list[PointOf[C]]:
    """A point for every combination of the settings that are lists."""
    lists = {name: values for name, values in mine.items() if isinstance(values, list)}
    points = []
    for values in product(*lists.values()):
        varied = dict(zip(lists, values, strict=True))
        points.append(PointOf(configured({**mine, **varied}), varied))
    return points


def check_size(
    methods: Sequence[str],
    given: Mapping[str, Any],
    seeds: int,
    settings_of: Callable[[str], Sequence[str]] = settings,
) -> None:
    """Refuse runs beyond reason before the points of a grid are even listed."""
    sizes = {name: len(values) for name, values in given.items() if isinstance(values, list)}
    points = sum(prod(sizes.get(name, 1) for name in settings_of(method)) for method in methods)
    if points * seeds > LARGEST:
        what = f"The grid has {points:,} points; with {seeds:,} seeds each" if sizes else f"With {seeds:,} seeds"
        raise ConfigError(
            f"{what} that is {points * seeds:,} runs, and one call takes at most {LARGEST:,}. Name fewer values or "
            "seeds, or ask for one part after another: what is finished stays."
        )


def reference_for(point: Point, references: Sequence[Point]) -> Point | None:
    """The reference trained with the same values, as far as it has the settings."""
    for reference in references:
        if all(point.varied.get(name) == value for name, value in reference.varied.items()):
            return reference
    return None
