"""The built-in sections: what Kenyon measures, as views."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from kenyon.experiments.results import Result, Run
from kenyon.metrics import Array, Summary, average_curve, expertise
from kenyon.report.page.entries import OF_ALL, Entry, Group, Section, section, values_of
from kenyon.utils.views import View

T = TypeVar("T")
EXACT = 15  # decimals of what is rounded for the reader by the page, that it may say what the tables say
SHOWN = 1  # decimals in a heat map; most of the page is matrices


def number(value: float | None, digits: int = 4) -> float | None:
    """For JSON: null where nothing finite was measured."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def numbers(values: Any, digits: int = 4) -> Any:
    """An array as nested lists."""
    rounded = np.round(np.asarray(values, dtype=float), digits)
    known: Any = rounded.astype(object)
    known[~np.isfinite(rounded)] = None
    return known.tolist()


def some_of(group: Group) -> str:
    """Says so where a chart leaves results out."""
    drawn, shown = len(group.drawn), len(group.main)
    rated = sum(e.aac is not None for e in group.main)
    without = f" {shown - rated} without a complete run." if shown > rated else ""
    return (f" Drawn are the best {drawn} of {rated}; the table has all." if drawn < rated else "") + without


@section("accuracy over tasks")
def accuracy_over_tasks(group: Group) -> Section | None:
    series = [_curve(e) for e in group.drawn]
    if not series:
        return None
    title = "Average accuracy of the tasks learned so far"
    lowest = [(one, min(known)) for one in series if (known := [y for y in one["y"] if y is not None])]
    near = [one for one, _ in _near(lowest)]
    views = [_curves(title, series), *([_curves("The same without the lowest", near)] if near else [])]
    note = "Mean over runs; bands are one standard error. Dashed: all tasks learned at once."
    dashed = any(one.get("dashed") for one in series)
    return Section("Accuracy over tasks", views, (note if dashed else note.partition(" Dashed")[0]) + some_of(group))


def _curves(title: str, series: list[dict[str, Any]]) -> View:
    return {"kind": "lines", "title": title, "x": "tasks learned", "y": "accuracy, %", "data": series}


def _curve(entry: Entry) -> dict[str, Any]:
    runs = entry.result.accuracy  # (R, phases, T)
    phases, tasks = runs.shape[1:]
    together = phases == 1 and tasks > 1  # joint training: one number for all tasks
    places = [1, tasks] if together else list(range(1, phases + 1))
    curves = np.array([[np.mean(m)] * 2 if together else average_curve(m) for m in runs])
    means = [Summary.of(list(column)) for column in curves.T]
    return {
        "name": entry.label,
        "x": places,
        "y": [number(s.mean) if s else None for s in means],
        "error": [number(s.sem) if s else None for s in means],
        **({"dashed": True} if together else {}),
    }


@section("plasticity and stability")
def plasticity_and_stability(group: Group) -> Section | None:
    found = [
        (e.label, learned, bwt)
        for e in group.drawn
        if (learned := e.result.learned) is not None and (bwt := e.result.bwt) is not None
    ]
    if not found:
        return None
    views = [_plasticity("All methods", found)]
    near = [point for point, _ in _near([(p, p[2].mean) for p in found])]
    if near:
        views.append(_plasticity("The same without the most forgetful", near))
    note = (
        "To the right: better on a task that was just learned. Up: less of it lost by the end (backward transfer). "
        "Bars are one standard error."
    )
    return Section("Plasticity against stability", views, note + some_of(group))


Point = tuple[str, Summary, Summary]


def _plasticity(title: str, found: list[Point]) -> View:
    series = [
        {
            "name": label,
            "x": [number(learned.mean)],
            "y": [number(bwt.mean)],
            "x_error": [number(learned.sem)],
            "y_error": [number(bwt.sem)],
        }
        for label, learned, bwt in found
    ]
    names = {"x": "accuracy of a task just learned, %", "y": "backward transfer, points"}
    return {"kind": "scatter", "title": title, **names, "data": series}


def _near(found: list[tuple[T, float]]) -> list[tuple[T, float]]:
    """Without what is below the widest gap of the values, where that is little and presses the rest together."""
    values = sorted(value for _, value in found)
    if len(values) < 4:
        return []
    gap = int(np.argmax(np.diff(values))) + 1
    whole, rest = values[-1] - values[0], values[-1] - values[gap]
    return [p for p in found if p[1] >= values[gap]] if gap <= len(values) / 3 and rest < whole / 2 else []


@section("variants")
def variants(group: Group) -> Section | None:
    views: list[View] = []
    for method, points in group.variants.items():
        own = [e for e in group.main if e.result.method == method and e.aac is not None]
        rated = sorted((e for e in points if e.aac is not None), key=lambda e: -e.aac.mean if e.aac else 0.0)
        named = [(e, e.label) for e in own] + [(e, values_of(e)) for e in rated[:OF_ALL]]
        views.append(
            {
                "kind": "bars",
                "title": method,
                "x": "average accuracy in the end, %",
                "style": "dots",
                "digits": 2,
                "data": [bar(name, e.aac) | {"label": e.label} for e, name in named if e.aac is not None],
                **({"note": f"The best {OF_ALL} of {len(rated)} points."} if len(rated) > OF_ALL else {}),
            }
        )
    note = "Each method as the benchmark has it, and below it the points of its grid, best first."
    return Section("Points of grids", views, note) if views else None


@section("accuracy matrices")
def accuracy_matrices(group: Group) -> Section | None:
    views = [view for e in group.main if (view := _matrix(e)) is not None]
    if not views:
        return None
    note = (
        "Row: after which task was tested. Column: the task that was tested. Left and below the diagonal are tasks "
        "already learned, above it tasks still to come."
    )
    return Section("Accuracy matrices", views, note, small=True)


def _matrix(entry: Entry) -> View | None:
    result = entry.result
    with_numbers = [run for run in result.runs if run.accuracy]
    if not with_numbers:
        return None
    complete = [run for run in with_numbers if run.complete]
    tasks = len((complete or with_numbers)[0].tasks)
    phases = len((complete or with_numbers)[0].accuracy)
    phases = phases if complete else tasks
    frames: list[dict[str, Any]] = []
    if complete:
        frames.append({"name": "mean of the runs", "data": numbers(result.accuracy.mean(0), SHOWN)})
    for run in with_numbers:
        rows = numbers(run.matrix, SHOWN)
        rows += [[None] * tasks for _ in range(phases - len(rows))]
        if len(rows) == phases and len(run.tasks) == tasks:
            frames.append({"name": _run_name(run), "data": rows, "columns": _task_names(run)})
    together = phases == 1 and tasks > 1
    return {
        "kind": "heatmap",
        "title": entry.label,
        "x": "task tested",
        "y": "tasks learned",
        "rows": ["all"] if together else list(range(1, phases + 1)),
        "columns": list(range(1, tasks + 1)),
        "data": frames,
        "range": [0, 100],
        "digits": SHOWN,
    }


def _run_name(run: Run) -> str:
    return f"seed {run.seed}" + ("" if run.complete else ", diverged")


def _task_names(run: Run) -> list[str]:
    return [f"{i + 1} ({name:.40})" for i, name in enumerate(run.tasks)]


def several_learners(result: Result) -> bool:
    return any(len(row) > 1 for run in result.complete_runs for row in run.own_accuracy)


@section("learners")
def learners(group: Group) -> list[Section]:
    together = [e for e in group.main if several_learners(e.result)]
    if not together:
        return []
    own = {e.label: [expertise(np.array(r.own_accuracy)) for r in e.result.complete_runs] for e in together}
    values = np.concatenate([np.abs(a).ravel() for some in own.values() for a in some])
    values = values[np.isfinite(values)]
    limit = math.ceil(values.max()) if values.size and values.max() > 0 else 1
    views = [_expertise(e, own[e.label], limit) for e in together]
    note = (
        "A learner's own accuracy on a task in the end, minus the mean of the learners on that task. Learners have "
        "no identity across runs, so there is no mean over runs."
    )
    sections = [Section("Expertise of the learners", views, note, small=True)]
    measured = [e for e in together if all(r.cosine and r.euclidean for r in e.result.complete_runs)]
    spread = [
        _diversity(name, found)
        for name, found in (
            ("Cos, 1 minus cosine similarity", [(e.label, e.result.cosine) for e in measured]),
            ("Euc, Euclidean distance", [(e.label, e.result.euclidean) for e in measured]),
        )
        if any(summary is not None for _, summary in found)
    ]
    if spread:
        note = (
            "How much the learners' predictions differ, a mean over pairs of learners, samples and tasks; 0: equal."
        )
        sections.append(Section("Diversity of the learners", spread, note))
    return sections


def _expertise(entry: Entry, runs: list[Array], limit: float) -> View:
    tasks, K = runs[0].shape
    return {
        "kind": "heatmap",
        "title": entry.label,
        "x": "task",
        "y": "learner",
        "rows": list(range(1, K + 1)),
        "columns": list(range(1, tasks + 1)),
        "data": [
            {"name": _run_name(run), "data": numbers(own.T, SHOWN), "columns": _task_names(run)}
            for run, own in zip(entry.result.complete_runs, runs, strict=True)
        ],
        "scale": "diverging",
        "range": [-limit, limit],
        "digits": SHOWN,
    }


def _diversity(title: str, values: list[tuple[str, Summary | None]]) -> View:
    return {
        "kind": "bars",
        "title": title,
        "x": title.partition(",")[0],
        "data": [bar(label, summary) for label, summary in values if summary is not None],
        "digits": 3,
    }


def bar(label: str, summary: Summary) -> dict[str, Any]:
    return {
        "name": label,
        "value": number(summary.mean, EXACT),
        "error": number(summary.sem, EXACT),
        "points": [v for v in numbers(summary.runs) if v is not None],
    }
