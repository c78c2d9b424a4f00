"""The sources by name. A function's name is the name on the command line (r_cifar_100 -> r-cifar-100).

To add a dataset, write one file with one decorated function and import it in `kenyon.streams`:

    @register(class_counts=(2,) * 5, shape=(1, 8, 8))
    def my_data(data: Path | None) -> Source:
        '''One line that `kenyon list benchmarks` shows.'''
        return Source(...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kenyon.errors import unknown
from kenyon.streams.source import Source

Loader = Callable[[Path | None], Source]


@dataclass(frozen=True)
class SourceSpec:
    """What is known of a source without reading its files."""

    name: str
    summary: str
    class_counts: tuple[int, ...]  # of each task
    shape: tuple[int, int, int]
    needs: tuple[str, ...]  # datasets that must be on disk, by their name in `kenyon data list`
    whole: bool  # the classes of a task belong together (an alphabet): a search keeps them so
    load: Loader  # takes the user's data folder, or None for the usual places


SOURCES: dict[str, SourceSpec] = {}


def register(
    *,
    class_counts: tuple[int, ...],
    shape: tuple[int, int, int],
    needs: tuple[str, ...] = (),
    whole: bool = False,
) -> Callable[[Loader], Loader]:
    """Make a source of a function that reads it, under the function's name."""

    def add(load: Loader) -> Loader:
        name = load.__name__.replace("_", "-")
        summary = next(iter((inspect.getdoc(load) or "").splitlines()), "")
        SOURCES[name] = SourceSpec(name, summary, class_counts, shape, needs, whole, load)
        return load

    return add


def find_source(name: str) -> SourceSpec:
    """The source of that name; otherwise an error that names the nearest ones."""
    if name not in SOURCES:
        raise unknown("benchmark", name, SOURCES)
    return SOURCES[name]
