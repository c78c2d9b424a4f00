"""Views that several figures have."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kenyon.experiments.benchmarks import find_benchmark
from kenyon.experiments.published import ACCURACY
from kenyon.experiments.results import Result
from kenyon.metrics import Summary
from kenyon.reproduce.figure import MEASURES, Comparison, summary
from kenyon.reproduce.wanted import Found, Had
from kenyon.views import Bar, View, bars


def result_bars(benchmark: str, hads: Mapping[str, Had], measure: str) -> View:
    """A bar a variant, every run a point, and the published value beside where there is one."""
    found = []
    for name, had in hads.items():
        s = summary(had.result, measure)
        if isfinite(s.mean):
            found.append(Bar(name, s.mean, s.sem, s.runs, published(had) if measure == "aac" else None))
    return bars(benchmark, MEASURES[measure], found, reference="published")


def published(had: Had) -> float | None:
    """The published average accuracy of a method as it is published: nothing changed, and all of it."""
    config, benchmark = had.result.config, find_benchmark(had.result.benchmark)
    whole = config["tasks"] == len(benchmark.source.class_counts)
    usual = config["training"]["epochs"] == benchmark.training.epochs and not had.result.point
    return ACCURACY.get(benchmark.name, {}).get(had.result.method) if whole and usual else None


def accuracies(found: Found) -> list[Comparison]:
    return [
        Comparison(f"{benchmark}, {name}", summary(had.result, "aac"), published(had))
        for benchmark, hads in found.items()
        for name, had in hads.items()
    ]


def results_of(found: Found, benchmark: str) -> dict[str, Result]:
    return {name: had.result for name, had in found[benchmark].items()}


def of_values(values: list[float]) -> Summary:
    return Summary.of(values) or Summary(float("nan"), float("nan"), ())
