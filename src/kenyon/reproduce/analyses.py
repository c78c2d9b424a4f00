"""Analyses of the runs of a figure: measured once, and kept beside the results."""

from __future__ import annotations

from functools import cache
from typing import Any

from kenyon.analysis import analyse, find_analysis
from kenyon.experiments.results import Result
from kenyon.reproduce.wanted import Found, Had, Place
from kenyon.views import View

Runs = list[dict[str, Any]]  # what was measured of every run, with its seed


def measured(found: Found, place: Place, name: str) -> dict[str, dict[str, Runs]]:
    """Benchmark -> what the figure calls a variant -> runs."""
    analysis = find_analysis(name)

    def of(benchmark: str, had: Had) -> Runs:
        source = cache(lambda: place.source(benchmark))
        whole = Result.load(had.folder / "result.json")  # with all its runs: what is kept beside it is of all
        runs = analyse(analysis, analysis.settings, had.folder, whole, source, place.device).runs
        asked = {run.seed for run in had.result.runs}
        return [run for run in runs if run["seed"] in asked]

    return {b: {name: of(b, had) for name, had in hads.items()} for b, hads in found.items()}


def compared(found: Found, place: Place, name: str) -> list[View]:
    """One view a benchmark, its variants side by side."""
    compare = find_analysis(name).compare
    assert compare is not None
    return [compare(benchmark, runs) for benchmark, runs in measured(found, place, name).items()]


def by_seed(runs: Runs, value: str) -> dict[int, float]:
    return {int(run["seed"]): float(run[value]) for run in runs if run.get(value) is not None}
