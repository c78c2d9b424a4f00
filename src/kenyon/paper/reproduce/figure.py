"""What a reproduction gives: views to look at, numbers beside the published ones, and claims with their evidence.

Every figure and table of results in the paper by name.

Views that several figures have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal

from kenyon.errors import unknown
from kenyon.experiments.published import published_for
from kenyon.experiments.results import Result
from kenyon.metrics import Summary, average_accuracy, backward_transfer, forward_transfer, learning_accuracy
from kenyon.paper.reproduce.runs import Found, Had, Place, Scale, Wanted
from kenyon.utils.views import Bar, View, bars

Verdict = Literal["for", "against", "undecided"]
SURE = 0.05  # the probability at which a difference of nothing would be taken for one

MEASURES = {
    "aac": "average accuracy (%)",
    "learned": "accuracy just after learning (%)",
    "fwt": "forward transfer (%)",
    "bwt": "backward transfer (%)",
}
# A note of figures that show plasticity.
PLASTICITY = (
    "Forward transfer is by the paper's formula, which tests a task before its head has learned anything: chance, "
    "for every method. Accuracy just after learning is the plasticity that it seems to mean."
)


@dataclass(frozen=True)
class Comparison:
    """A number of the paper, and ours."""

    what: str
    measured: Summary
    published: float | None = None

    @property
    def difference(self) -> float:
        return nan if self.published is None else self.measured.mean - self.published

    @property
    def errors(self) -> float:
        """The difference in our standard errors."""
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
    """Something the paper says, as a difference that should be positive, run by run."""

    text: str
    difference: Summary

    @property
    def verdict(self) -> Verdict:
        """By Student's t of the paired differences: three runs have to be 4.3 standard errors from 0, five 2.8.

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
        """The difference, with its standard error where there are several runs."""
        d = self.difference
        return f"{d.mean:+.3g}" + (f" ± {d.sem:.2g}" if isfinite(d.sem) else "")

    def as_dict(self) -> dict[str, Any]:
        d = self.difference
        numbers = {"difference": d.mean, "sem": d.sem if isfinite(d.sem) else None, "runs": list(d.runs)}
        return {"claim": self.text, "verdict": self.verdict, **numbers}


@dataclass(frozen=True)
class Figure:
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
    """A measure of every complete run."""
    found = {}
    for run in result.complete_runs:
        if measure == "aac":
            found[run.seed] = average_accuracy(run.matrix)
        elif measure == "learned":
            found[run.seed] = learning_accuracy(run.matrix)
        elif measure == "bwt":
            found[run.seed] = backward_transfer(run.matrix)
        elif measure == "fwt" and run.seed in result.alone:
            import numpy as np

            found[run.seed] = forward_transfer(run.matrix, np.array(result.alone[run.seed]))
    return found


def claim(text: str, larger: Result, smaller: Result, measure: str = "aac") -> list[Claim]:
    """That a measure of one result is larger than of another; nothing where no run has both."""
    one, other = by_seed(larger, measure), by_seed(smaller, measure)
    return claimed(text, one, other)


def claimed(text: str, larger: dict[int, float], smaller: dict[int, float]) -> list[Claim]:
    found = Summary.of([larger[seed] - smaller[seed] for seed in larger if seed in smaller])
    return [] if found is None else [Claim(text, found)]


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


def result_bars(benchmark: str, hads: Mapping[str, Had], measure: str) -> View:
    """A bar a variant, every run a point, and the published value beside where there is one."""
    found = []
    for name, had in hads.items():
        s = summary(had.result, measure)
        if isfinite(s.mean):
            found.append(Bar(name, s.mean, s.sem, s.runs, published_for(had.result) if measure == "aac" else None))
    return bars(benchmark, MEASURES[measure], found, reference="published")


def accuracies(found: Found) -> list[Comparison]:
    return [
        Comparison(f"{benchmark}, {name}", summary(had.result, "aac"), published_for(had.result))
        for benchmark, hads in found.items()
        for name, had in hads.items()
    ]


def of_values(values: list[float]) -> Summary:
    return Summary.of(values) or Summary(float("nan"), float("nan"), ())
