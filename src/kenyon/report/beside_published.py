"""Measured beside published average accuracies, of all benchmarks at once: a sentence and a chart."""

from __future__ import annotations

from collections.abc import Mapping

from kenyon.experiments.published import published_for
from kenyon.experiments.results import Result
from kenyon.report.markdown import BENCHMARKS, place
from kenyon.views import View
from kenyon.words import counted

NEAR = 1.5  # points: about two standard errors of a difference of two means of five runs on CIFAR-100
FAR = 5.0  # points, where colours end: one value far away would make all others alike

Results = Mapping[str, Mapping[str, Result]]  # benchmark -> label -> result


def differences(results: Results) -> dict[tuple[str, str], float]:
    """(benchmark, label) -> measured minus published, in points, wherever both are known."""
    return {
        (benchmark, label): r.aac.mean - value
        for benchmark, methods in results.items()
        for label, r in methods.items()
        if (value := published_for(r)) is not None and r.aac is not None
    }


def published_sentence(results: Results) -> str:
    """How many published values come out, and which do not; nothing where none is known."""
    found = differences(results)
    if not found:
        return ""
    low = sorted((value, *where) for where, value in found.items() if value < -NEAR)
    reached = sum(value >= 0 for value in found.values())
    named = ", ".join(f"{label} on {benchmark} by {-value:.1f}" for value, benchmark, label in low)
    return (
        f"Of {counted(len(found), 'published number')}, reached or passed: {reached}; missed by at most {NEAR:g} "
        f"points: {len(found) - reached - len(low)}; by more: {len(low)}"
        f"{f' ({named})' if named else ''}."
    )


def published_view(results: Results) -> View:
    """Methods by benchmarks: by how many points what was measured is above what is published."""
    found = differences(results)
    benchmarks = sorted({b for b, _ in found}, key=lambda b: (BENCHMARKS.index(b) if b in BENCHMARKS else 99, b))
    labels = sorted({label for _, label in found}, key=place)
    return {
        "kind": "heatmap",
        "title": "Average accuracy measured, minus published",
        "note": f"Points; colours end at {FAR:g}. Empty: nothing is published.",
        "x": "",
        "y": "",
        "rows": labels,
        "columns": benchmarks,
        "data": [[found.get((b, label)) for b in benchmarks] for label in labels],
        "scale": "diverging",
        "range": [-FAR, FAR],
        "digits": 1,
    }
