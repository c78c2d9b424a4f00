"""The sections of a benchmark's part of the page: built-in measures, and saved analyses.

An analysis is METHOD/analysis/NAME.json; sections are one per name, methods side by side. A file is a view, a list of
views, or has one as its `view`, like those of `kenyon analyse`. Of these, measurements of runs that have been trained
again since are named and not shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result, Run
from kenyon.metrics import Array, Summary, average_curve, expertise
from kenyon.report.page.entries import OF_ALL, Entry, Group, Section, bar, number, numbers, section, values_of
from kenyon.utils.formats import check_json
from kenyon.utils.views import View, ViewError, checked, frames

T = TypeVar("T")
SHOWN = 1  # decimals in a heat map; most of the page is matrices
OUTDATED = "Not shown, for the runs have changed since it was measured: {}. `kenyon analyse` measures what is new."


def some_of(group: Group) -> str:
    """A sentence for charts that leave results out."""
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
    """Return the points above the widest gap, if few lie below it and compress the scale of the rest."""
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


# ---------------------------------------------------------------------- saved analyses


class _Measurement(msgspec.Struct):
    """A run of a saved analysis."""

    seed: int
    run: str | msgspec.UnsetType = msgspec.UNSET  # digest of its numbers; unset in files of an earlier version
    basis: str | None = None


class _Analysis(msgspec.Struct):
    """The part of a saved analysis that tells if it is outdated."""

    analysis: str
    configuration: str = ""
    runs: list[_Measurement] = []
    of: dict[str, str] | msgspec.UnsetType = msgspec.UNSET  # label -> file, if it shows several results
    basis: dict[str, dict[str, str | None]] = {}


@section("analyses")
def analyses(group: Group) -> list[Section]:
    """Sections by name: first BENCHMARK/analysis/NAME.json, which compares methods, then those of the methods."""
    found: dict[str, list[View]] = {}
    outdated: dict[str, list[str]] = {}
    results = {entry.folder: entry.result for entry in group.entries}
    above = {(entry.folder.parent, entry.file.rsplit("/", 2)[0]) for entry in group.entries if not entry.result.point}
    folders = [(*one, "") for one in sorted(above)]
    folders += [(entry.folder, entry.file.rpartition("/")[0], entry.label) for entry in group.entries]
    for folder, shown, label in folders:
        for path in sorted((folder / "analysis").glob("*.json")):
            (body, plain), file = read_analysis(path), f"{shown}/analysis/{path.name}"
            views = [_titled(view, label, file) for view in plain]
            if views and outdated_analysis(body, folder, results):
                outdated.setdefault(path.stem, []).append(file)
            elif views:
                found.setdefault(path.stem, []).extend(views)
    return [_section(name, found.get(name, []), outdated.get(name, [])) for name in sorted({*found, *outdated})]


def _section(name: str, views: list[View], outdated: list[str]) -> Section:
    note = OUTDATED.format(", ".join(outdated)) if outdated else ""
    return Section(name.replace("_", " ").replace("-", " ").capitalize(), _alike(views), note, small=_small(views))


def read_analysis(path: Path) -> tuple[Any, list[View]]:
    """Return the contents of a file, and the views among them."""
    body = _body(path)
    return body, _views(body, path)


def _body(path: Path) -> Any:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path)
        return body
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path} cannot be read as JSON ({error}). Repair it or move it away.") from error


def _views(body: Any, path: Path) -> list[View]:
    """The views of a file; none if nothing in it has a kind, as in JSON of other programs."""
    match body:
        case {"view": found}:
            body = found
    some = body if isinstance(body, list) else [body]
    if not any(isinstance(one, dict) and "kind" in one for one in some):
        return []
    try:
        return [checked(one) for one in some]
    except ViewError as error:
        raise ResultsError(
            f"{path} is not a view: {error}. kenyon.utils.views describes the form. Repair it or move it away."
        ) from error


def outdated_analysis(body: Any, folder: Path, results: Mapping[Path, Result]) -> bool:
    """True if `kenyon analyse` measured other runs than the results have now. Other programs' files never are."""
    saved = _analysis(body)
    if saved is None:
        return False
    if saved.of is not msgspec.UNSET:
        return any(_part_outdated(saved, label, folder / file, results) for label, file in saved.of.items())
    return _of_other_runs(saved, results.get(folder))


def _analysis(body: Any) -> _Analysis | None:
    try:
        return msgspec.convert(body, _Analysis)
    except msgspec.ValidationError:  # another program's
        return None


def _part_outdated(whole: _Analysis, label: str, file: Path, results: Mapping[Path, Result]) -> bool:
    """True if one of several compared results has another measurement, needs one, or is gone."""
    try:
        if not file.is_file():
            return True
    except OSError:  # a name that no file can have
        return True
    part = _analysis(_body(file))
    if part is None or _of_other_runs(part, results.get(file.parent.parent)):
        return True
    drawn = whole.basis.get(label)
    return drawn is not None and drawn != {str(run.seed): run.basis for run in part.runs}


def _of_other_runs(saved: _Analysis, result: Result | None) -> bool:
    if result is None:
        return False
    now = {run.seed: run.digest for run in result.complete_runs}
    known = {run.seed: run.run for run in saved.runs if run.run}
    if not known:  # of an earlier version, without digests of runs
        from kenyon.experiments.store import config_digest

        return saved.configuration not in ("", config_digest(result.config))
    return any(now.get(seed) != digest for seed, digest in known.items())


def _titled(view: View, label: str, file: str) -> View:
    """The view with its file as origin, and the result's label in its title."""
    title = view["title"] if label in view["title"] else f"{label}: {view['title']}"
    return {**view, "title": title, "origin": {**view.get("origin", {}), "file": file}}


def _small(views: list[View]) -> bool:
    return all(view["kind"] == "heatmap" for view in views)


def _alike(views: list[View]) -> list[View]:
    """Give heat maps without a range a common one per scale, since they are compared."""
    shared: dict[str, list[float]] = {}
    for view in views:
        if view["kind"] == "heatmap" and "range" not in view:
            grids = [frame["data"] for frame in frames(view)] or [view["data"]]
            values = [v for grid in grids for row in grid for v in row if v is not None]
            shared.setdefault(view.get("scale", "sequential"), []).extend(values)
    ranges = {scale: _range(scale, values) for scale, values in shared.items()}
    return [
        {**view, "range": ranges[view.get("scale", "sequential")]}
        if view["kind"] == "heatmap" and "range" not in view
        else view
        for view in views
    ]


def _range(scale: str, values: list[float]) -> list[float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if scale == "diverging":
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    return [low, high if high > low else low + 1.0]
