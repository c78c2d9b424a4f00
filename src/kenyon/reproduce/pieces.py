"""Views that several figures have."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from kenyon.experiments.published import published_for
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
