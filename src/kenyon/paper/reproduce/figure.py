"""Figures and tables of the paper: the runs they need, what they show, and their claims.

A reproduction is a function with `@reproduction`, from results to a `Figure`: views, numbers next to the published
ones, and claims with their evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kenyon.errors import unknown
from kenyon.experiments.results import Result
from kenyon.metrics import Summary, average_accuracy, backward_transfer, forward_transfer, learning_accuracy
from kenyon.report.tables import published
from kenyon.utils.views import Bar, View, bars

if TYPE_CHECKING:
    import torch

    from kenyon.data import Source
    from kenyon.experiments.results import GameResult
    from kenyon.experiments.runner import Plan

CIFAR = ("s-cifar-100", "r-cifar-100", "r-cifar-10-100")
Verdict = Literal["for", "against", "undecided"]
SURE = 0.05  # level of the test

MEASURES = {
    "aac": "average accuracy (%)",
    "learned": "accuracy just after learning (%)",
    "fwt": "forward transfer (%)",
    "bwt": "backward transfer (%)",
}
PLASTICITY = (
    "Forward transfer is by the paper's formula, which tests a task before its head has learned anything: chance, "
    "for every method. Accuracy just after learning is the plasticity that it seems to mean."
)


@dataclass(frozen=True)
class Scale:
    """The part of the paper's work that a reproduction does.

    `stand_in` replaces every benchmark, `seen` those that need a network with convolutions.
    """

    name: str
    about: str
    stand_in: str | None = None
    seen: str | None = None
    most_seeds: int | None = None
    most_trained: int | None = None  # runs of a variant that are trained for a figure; more are used if they exist
    tasks: int | None = None  # of each run; None: all
    settings: Mapping[str, Any] = field(default_factory=dict)  # for every run
    folder: str = ""  # of its runs, below the results folder

    def benchmark(self, name: str, *, convolutions: bool = False) -> str:
        return (self.seen if convolutions else self.stand_in) or name

    def benchmarks(self, *names: str) -> tuple[str, ...]:
        """Return the benchmarks of this scale, each once, in order."""
        return tuple(dict.fromkeys(self.benchmark(name) for name in names))

    def seeds(self, published: int) -> int:
        """Return the most runs that a figure shows."""
        return min(published, self.most_seeds or published)

    def trained(self, published: int) -> int:
        """Return the number of runs that a figure needs."""
        return min(self.seeds(published), self.most_trained or published)

    def at_most(self, seeds: int | None) -> Scale:
        """Return the scale with at most `seeds` needed runs per variant."""
        return self if seeds is None else replace(self, most_trained=seeds)


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "handwritten digits on a CPU, 8 epochs, 2 runs, under a minute: that it works, not that it holds",
            stand_in="digits",
            seen="digits-conv",
            most_seeds=2,
            settings={"epochs": 8},
            folder="smoke",
        ),
        Scale(
            "quick",
            "the paper's benchmarks, 5 tasks of 20 epochs, 2 runs: a first look, minutes on a GPU",
            most_seeds=2,
            tasks=5,
            settings={"epochs": 20},
            folder="quick",
        ),
        Scale("paper", "the full protocol: for a GPU"),
    )
}


def find_scale(name: str) -> Scale:
    """Return the scale of that name, or raise an error that names the nearest ones."""
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]


@dataclass(frozen=True)
class Variant:
    """A method with some settings, under its name in a figure."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    called: str = ""

    @property
    def name(self) -> str:
        return self.called or self.method


@dataclass(frozen=True)
class Wanted:
    """The runs of a benchmark that a figure needs."""

    benchmark: str
    variants: tuple[Variant, ...]
    seeds: int = 5
    fwt: bool = False  # needs forward transfer
    every_task: bool = False  # needs the weights after every task


@dataclass(frozen=True)
class Place:
    """The folder and the device of a reproduction."""

    out: Path
    scale: Scale
    device: torch.device
    data: Path | None = None
    train: bool = True  # False: missing runs are an error
    play: Callable[[Plan], dict[str, GameResult]] | None = None  # trains games; None: without progress

    @property
    def runs(self) -> Path:
        return self.out / self.scale.folder

    def source(self, benchmark: str) -> Source:
        from kenyon.benchmarks.registry import find_benchmark

        return find_benchmark(benchmark).source.load(self.data)


@dataclass(frozen=True)
class VariantResult:
    """The result of a variant, and its folder."""

    variant: Variant
    result: Result
    folder: Path


Results = dict[str, dict[str, VariantResult]]  # benchmark -> name in the figure -> result


@dataclass(frozen=True)
class Comparison:
    """A published number and the measured one."""

    what: str
    measured: Summary
    published: float | None = None

    @property
    def difference(self) -> float:
        return nan if self.published is None else self.measured.mean - self.published

    @property
    def errors(self) -> float:
        """The difference in standard errors of the measured mean."""
        return self.difference / self.measured.sem if self.measured.sem else nan

    def row(self) -> list[str | float | None]:
        published = self.published
        numbers = (
            self.measured.mean,
            self.measured.sem,
            float(len(self.measured.runs)),
            self.difference,
            self.errors,
        )
        mean, sem, n, difference, errors = (v if isfinite(v) else None for v in numbers)
        return [self.what, published, mean, sem, n, difference, errors]


DECIDED = (
    "A claim is a difference between two results, run by run with equal seeds, and is decided at the "
    f"{SURE:.0%} level of Student's t: two runs have to be 12.7 standard errors from 0, three 4.3, five 2.8."
)
COLUMNS = ("", "published", "measured", "standard error", "runs", "difference", "in standard errors")


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, as a difference that should be positive, run by run."""

    text: str
    difference: Summary

    @property
    def verdict(self) -> Verdict:
        """The verdict by Student's t of paired differences: three runs need 4.3 standard errors, five 2.8.

        Theory has one value, without error. Two runs that agree by chance decide nothing.
        """
        from scipy.special import stdtrit  # it comes with scikit-learn

        mean, sem = self.difference.mean, self.difference.sem
        n = self.difference.count
        if sem == 0 and n == 1:  # theory
            decided = mean != 0
        else:
            decided = n >= (3 if sem == 0 else 2) and abs(mean) > stdtrit(n - 1, 1 - SURE / 2) * sem
        return "undecided" if not decided else "for" if mean > 0 else "against"

    @property
    def found(self) -> str:
        """The difference, with its standard error if there are several runs."""
        d = self.difference
        return f"{d.mean:+.3g}" + (f" ± {d.sem:.2g}" if isfinite(d.sem) else "")

    def as_dict(self) -> dict[str, Any]:
        d = self.difference
        numbers = {"difference": d.mean, "sem": d.sem if isfinite(d.sem) else None, "runs": list(d.runs)}
        return {"claim": self.text, "verdict": self.verdict, **numbers}


@dataclass(frozen=True)
class Figure:
    """The contents of a figure or table."""

    title: str
    views: Sequence[View]
    columns: int = 3  # views in a row
    comparisons: Sequence[Comparison] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    draw: Callable[[Path], Path] | None = None  # a picture of its own instead of the views


def summary(result: Result, measure: str) -> Summary:
    found: Summary | None = getattr(result, measure)
    return found if found is not None else Summary(nan, nan, ())


def by_seed(result: Result, measure: str) -> dict[int, float]:
    """Return a measure of every complete run by its seed."""
    found = {}
    for run in result.complete_runs:
        if measure == "aac":
            found[run.seed] = average_accuracy(run.matrix)
        elif measure == "learned":
            found[run.seed] = learning_accuracy(run.matrix)
        elif measure == "bwt":
            found[run.seed] = backward_transfer(run.matrix)
        elif measure == "fwt" and run.seed in result.alone:
            found[run.seed] = forward_transfer(run.matrix, np.array(result.alone[run.seed]))
    return found


def claim(text: str, larger: Result, smaller: Result, measure: str = "aac") -> list[Claim]:
    """Claim that a measure of one result is larger than of another; empty if no run has both."""
    one, other = by_seed(larger, measure), by_seed(smaller, measure)
    return claimed(text, one, other)


def claimed(text: str, larger: dict[int, float], smaller: dict[int, float]) -> list[Claim]:
    found = Summary.of([larger[seed] - smaller[seed] for seed in larger if seed in smaller])
    return [] if found is None else [Claim(text, found)]


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of the paper: the runs that it needs, and the function that makes it of their results."""

    name: str
    shows: str
    cost: str  # of all its runs at paper scale, on one H200
    wanted: Callable[[Scale], Sequence[Wanted]]
    made: Callable[[Results, Place], Figure]


REPRODUCTIONS: dict[str, Reproduction] = {}


def reproduction(
    name: str, shows: str, cost: str, wanted: Callable[[Scale], Sequence[Wanted]] = lambda scale: ()
) -> Callable[[Callable[[Results, Place], Figure]], Callable[[Results, Place], Figure]]:
    """Register a function from results to a figure; `wanted` names the runs that it needs."""

    def add(made: Callable[[Results, Place], Figure]) -> Callable[[Results, Place], Figure]:
        REPRODUCTIONS[name] = Reproduction(name, shows, cost, wanted, made)
        return made

    return add


def find_reproduction(name: str) -> Reproduction:
    """Return the figure or table of that name, or raise an error that names the nearest ones."""
    if name not in REPRODUCTIONS:
        raise unknown("figure or table", name, [*REPRODUCTIONS, "all"])
    return REPRODUCTIONS[name]


def result_bars(benchmark: str, variants: Mapping[str, VariantResult], measure: str) -> View:
    """A bar per variant with its runs as points, and the published value as reference."""
    found = []
    for name, one in variants.items():
        s = summary(one.result, measure)
        if isfinite(s.mean):
            found.append(Bar(name, s.mean, s.sem, s.runs, published(one.result) if measure == "aac" else None))
    return bars(benchmark, MEASURES[measure], found, reference="published")


def accuracies(results: Results) -> list[Comparison]:
    return [
        Comparison(f"{benchmark}, {name}", summary(one.result, "aac"), published(one.result))
        for benchmark, variants in results.items()
        for name, one in variants.items()
    ]


def of_values(values: list[float]) -> Summary:
    return Summary.of(values) or Summary(float("nan"), float("nan"), ())
