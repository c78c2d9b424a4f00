"""Analyses that lie beside a result, METHOD/analysis/NAME.json, as sections: one a name, methods side by side.

A file is a view, a list of views, or has one as its `view`, like those of `kenyon analyse`. Of these, what was
measured of runs that have been trained anew since is named and not shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result
from kenyon.experiments.store import config_digest
from kenyon.report.page.entries import Group, Section
from kenyon.utils.formats import check_json
from kenyon.utils.views import View, ViewError, checked

OUTDATED = "Not shown, for the runs have changed since it was measured: {}. `kenyon analyse` measures what is new."


def analyses(group: Group) -> list[Section]:
    """Of one name first what shows methods together, BENCHMARK/analysis/NAME.json, then each of them."""
    found: dict[str, list[View]] = {}
    outdated: dict[str, list[str]] = {}
    results = {entry.folder: entry.result for entry in group.entries}
    above = {(entry.folder.parent, entry.file.rsplit("/", 2)[0]) for entry in group.entries if not entry.result.point}
    folders = [(*one, "") for one in sorted(above)]
    folders += [(entry.folder, entry.file.rpartition("/")[0], entry.label) for entry in group.entries]
    for folder, told, label in folders:
        for path in sorted((folder / "analysis").glob("*.json")):
            (body, plain), file = read_analysis(path), f"{told}/analysis/{path.name}"
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
    """All that a file holds, and the views among it."""
    body = _body(path)
    return body, _views(body, path)


def _body(path: Path) -> Any:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path)
        return body
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path} cannot be read as JSON ({error}). Mend it or move it away.") from error


def _views(body: Any, path: Path) -> list[View]:
    body = body["view"] if isinstance(body, dict) and "view" in body else body
    if not _meant_as_views(body):
        return []
    try:
        return [checked(one) for one in (body if isinstance(body, list) else [body])]
    except ViewError as error:
        raise ResultsError(
            f"{path} is not a view: {error}. kenyon.utils.views describes the form. Mend it or move it away."
        ) from error


def outdated_analysis(body: Any, folder: Path, results: Mapping[Path, Result]) -> bool:
    """Whether what `kenyon analyse` wrote is of other runs than the results have now. Others' files say nothing."""
    if not isinstance(body, dict) or "analysis" not in body:
        return False
    if isinstance(of := body.get("of"), dict):  # of several results
        return any(_part_outdated(body, label, folder / str(file), results) for label, file in of.items())
    return _of_other_runs(body, results.get(folder))


def _part_outdated(body: dict[str, Any], label: str, file: Path, results: Mapping[Path, Result]) -> bool:
    """Whether one of several results side by side has been measured anew, ought to be, or is no longer there."""
    try:
        if not file.is_file():
            return True
    except OSError:  # a name that no file can have
        return True
    part = _body(file)
    if _of_other_runs(part, results.get(file.parent.parent)):
        return True
    drawn = body["basis"].get(label) if isinstance(body.get("basis"), dict) else None
    return drawn is not None and drawn != {str(seed): run.get("basis") for seed, run in _measured(part).items()}


def _of_other_runs(body: Any, result: Result | None) -> bool:
    if result is None:
        return False
    now = {run.seed: run.digest for run in result.complete_runs}
    known = {seed: run["run"] for seed, run in _measured(body).items() if "run" in run}
    if not known:  # of an earlier version, which kept no digests of runs
        kept = body.get("configuration", "") if isinstance(body, dict) else ""
        return bool(kept not in ("", config_digest(result.config)))
    return any(now.get(seed) != digest for seed, digest in known.items())


def _measured(body: Any) -> dict[int, dict[str, Any]]:
    """What is known of every run, by its seed."""
    runs = body.get("runs") if isinstance(body, dict) else None
    some = [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    return {run["seed"]: run for run in some if isinstance(run.get("seed"), int)}


def _titled(view: View, label: str, file: str) -> View:
    """With its file, and with the result that it is of if it does not say so itself."""
    title = view["title"] if label in view["title"] else f"{label}: {view['title']}"
    return {**view, "title": title, "origin": {**view.get("origin", {}), "file": file}}


def _meant_as_views(body: Any) -> bool:
    """Other programs may keep JSON of their own there: what names no kind anywhere is left alone."""
    some = body if isinstance(body, list) else [body]
    return any(isinstance(one, dict) and "kind" in one for one in some)


def _small(views: list[View]) -> bool:
    return all(view["kind"] == "heatmap" for view in views)


def _alike(views: list[View]) -> list[View]:
    """Heat maps side by side are compared: those without a range of their own share one, where they share a scale."""
    shared: dict[str, list[float]] = {}
    for view in views:
        if view["kind"] == "heatmap" and "range" not in view:
            frames = view["data"] if isinstance(view["data"][0], dict) else [{"data": view["data"]}]
            values = [v for frame in frames for row in frame["data"] for v in row if v is not None]
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
