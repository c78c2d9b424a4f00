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

import torch

from kenyon.errors import ConfigError, unknown
from kenyon.streams.source import Source
from kenyon.streams.task import Heads

Loader = Callable[[Path | None], Source]


@dataclass(frozen=True)
class SourceSpec:
    """What is known of a source without reading its files."""

    name: str
    summary: str
    class_counts: tuple[int, ...]  # of each task
    shape: tuple[int, ...]  # of a sample
    needs: tuple[str, ...]  # datasets that must be on disk, by their name in `kenyon data list`
    whole: bool  # the classes of a task belong together (an alphabet): a search keeps them so
    load: Loader  # takes the user's data folder, or None for the usual places
    dtype: torch.dtype = torch.float32  # of a sample as the network sees it; int64 for tokens
    heads: Heads = "task"


SOURCES: dict[str, SourceSpec] = {}


def register(
    *,
    class_counts: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    heads: Heads = "task",
    needs: tuple[str, ...] = (),
    whole: bool = False,
) -> Callable[[Loader], Loader]:
    """Make a source of a function that reads it, under the function's name."""

    def add(load: Loader) -> Loader:
        name = load.__name__.replace("_", "-")
        if name in SOURCES and SOURCES[name].load.__module__ != load.__module__:
            # Results know benchmarks by name alone: those of one would be taken for those of the other.
            raise ConfigError(f"There is a benchmark {name} already. Give the function {load.__name__} another name.")
        summary = next(iter((inspect.getdoc(load) or "").splitlines()), "")
        about = (name, summary, class_counts, shape, needs, whole)
        SOURCES[name] = SourceSpec(*about, load, dtype=dtype, heads=heads)
        return load

    return add


def register_read(load: Loader, *, whole: bool = False) -> None:
    """Register a source that says itself what is in it: it is read now, from the usual places, and kept."""
    found = load(None)
    stream = found.stream(0, validation=0.0)

    def kept(data: Path | None) -> Source:
        return found if data is None else load(data)

    kept.__name__, kept.__doc__ = load.__name__, load.__doc__ or found.name
    kept.__module__ = load.__module__
    register(
        class_counts=stream.class_counts,
        shape=stream.input_shape,
        dtype=stream.input_dtype,
        heads=stream.heads,
        whole=whole or found.part is not None,
    )(kept)


def find_source(name: str) -> SourceSpec:
    """The source of that name; otherwise an error that names the nearest ones."""
    if name not in SOURCES:
        raise unknown("benchmark", name, SOURCES)
    return SOURCES[name]
