"""Benchmarks by name: a source of tasks, a network, a training regime and strengths of every method."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kenyon.backends.torch.generators import seeded
from kenyon.backends.torch.module import has_constants
from kenyon.data import SourceSpec, find_source, register
from kenyon.data.sources import Loader, register_read
from kenyon.errors import ConfigError, unknown
from kenyon.models import Backbone, Net, Start
from kenyon.training.regime import Training
from kenyon.utils.user_code import import_file

Tried = Mapping[str, tuple[float, ...]]  # setting -> values


@dataclass(frozen=True)
class Benchmark:
    """A source of tasks with a network, a training regime, strengths of methods, and published numbers."""

    name: str
    backbone: Backbone
    width: int  # of a single learner; several learners share its number of parameters
    training: Training
    hyperparameters: Mapping[str, Mapping[str, Any]]  # method -> name -> value
    widths: Mapping[int, int] = field(default_factory=dict)  # learners -> width, where it is published
    start: Start = "drawn"  # or from the weights that the backbone comes with
    tried: Mapping[str, Tried] = field(default_factory=dict)  # method -> the published grid of each strength
    published: Mapping[str, float] = field(default_factory=dict)  # method -> average accuracy in %, of 5 runs
    published_learners: Mapping[int, float] = field(default_factory=dict)  # learners -> that of CAF on EWC
    cite: str = ""

    @property
    def source(self) -> SourceSpec:
        return find_source(self.name)

    def parameters(self, width: int, learners: int) -> int:
        return _parameters(self.backbone, width, learners, self.start, self.source)

    def width_for(self, learners: int) -> int:
        """Return the width at which the number of parameters is nearest to that of a single learner.

        Five learners on the CIFAR network: 9, as published.
        """
        if learners == 1 or learners in self.widths:
            return self.widths.get(learners, self.width)
        return nearest_width(
            lambda width: self.parameters(width, learners), self.width, self.parameters(self.width, 1)
        )

    def grid(self, method: str) -> dict[str, tuple[float, ...]]:
        """Return the published grid of a method's strengths, in rising order."""
        if method not in self.tried:
            known = f"has those of {', '.join(self.tried)}" if self.tried else "has none"
            raise ConfigError(
                f"There is no published grid of {method} on {self.name}, which {known}. Name the values to try with "
                "--set NAME=VALUE,VALUE."
            )
        return {name: tuple(sorted(values)) for name, values in self.tried[method].items()}


def nearest_width(parameters: Callable[[int], int], most: int, budget: int) -> int:
    """Return the width up to `most` whose number of parameters is nearest to the budget."""
    over = bisect_left(range(1, most + 1), budget, key=parameters) + 1
    return min((max(over - 1, 1), over), key=lambda width: abs(parameters(width) - budget))


def make(backbone: Backbone, width: int, learners: int, start: Start) -> dict[str, Any]:
    """Return arguments of `Net`: the module, its start, and a function that initializes another.

    The module has no storage where possible, since every run initializes its own weights and a large network takes
    long to initialize. It has values where they are the start, or where the module holds constants.
    """
    draw = partial(backbone, width, learners)
    try:
        module = _without_storage(draw) if start == "drawn" else None
        module = seeded(draw, 0) if module is None else module
    except (RuntimeError, ValueError, TypeError, AssertionError, ArithmeticError) as error:
        raise ConfigError(
            f"The backbone cannot be built with width {width} for {learners} learners: {error}. Give one that it can "
            "have: widths={learners: width} in the benchmark, or --set width=..."
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The backbone's function must give an nn.Module, not {type(module).__name__}.")
    return {"backbone": module, "start": start, "draw": draw}


def _without_storage(draw: Callable[[], nn.Module]) -> nn.Module | None:
    try:
        with torch.device("meta"):
            module = draw()
    except (RuntimeError, NotImplementedError):
        return None  # some constructors read values
    return module if not isinstance(module, nn.Module) or not has_constants(module) else None


@cache
def _parameters(backbone: Backbone, width: int, learners: int, start: Start, source: SourceSpec) -> int:
    return Net(
        **make(backbone, width, learners, start),
        input_shape=source.shape,
        class_counts=source.class_counts,
        input_dtype=source.dtype,
        shared_head=source.heads == "shared",
        learners=learners,
    ).parameter_count


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    *,
    backbone: Backbone,
    width: int,
    class_counts: tuple[int, ...] | None = None,
    shape: tuple[int, ...] | None = None,
    training: Training | None = None,
    hyperparameters: Mapping[str, Mapping[str, Any]] | None = None,
    widths: Mapping[int, int] | None = None,
    start: Start = "drawn",
    whole: bool = False,
    needs: tuple[str, ...] = (),
    **declared: Any,
) -> Callable[[Loader], Loader]:
    """Make a benchmark of a function that reads a source: all a user's own file needs.

    `kenyon run my_stream.py` then runs it. Without `class_counts` (of each task) and `shape` (of a sample) the source
    is read at once, and asked. Methods without hyper-parameters here take theirs from `--set`. `widths`: learners ->
    width, where it is not the one with as many parameters as a single learner has. `start`: see `Net`. `whole`: the
    classes of a task belong together, and `kenyon search` does not redistribute them. `needs`: datasets on disk, by
    their names in `kenyon data list`. `declared`: further fields of `Benchmark` (tried, published, cite, ...).
    """
    try:
        inspect.signature(backbone).bind(width, 1)
    except TypeError:
        raise ConfigError(
            "A benchmark's backbone is a function of a width and the number of learners that gives an nn.Module: "
            "def backbone(width, learners)."
        ) from None

    def add(load: Loader) -> Loader:
        if class_counts is None or shape is None:
            register_read(load, whole=whole)
        else:
            register(class_counts=class_counts, shape=shape, needs=needs, whole=whole)(load)
        name = load.__name__.replace("_", "-")
        regime, hyper = training or Training(), hyperparameters or {}
        BENCHMARKS[name] = Benchmark(name, backbone, width, regime, hyper, widths or {}, start, **declared)
        return load

    return add


def load_benchmark_file(path: Path) -> str:
    """Import a user's file and return the name of the benchmark in it."""
    before = dict(BENCHMARKS)
    import_file(path, "benchmark")
    new = [name for name, bench in BENCHMARKS.items() if before.get(name) is not bench]
    if len(new) != 1:
        found = ", ".join(new) or "none"
        raise ConfigError(f"{path} must define one function with @benchmark(...); it defines {found}.")
    return new[0]


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name, or raise an error that suggests similar ones."""
    try:
        return BENCHMARKS[name]
    except (KeyError, TypeError):
        raise unknown("benchmark", name, BENCHMARKS) from None
