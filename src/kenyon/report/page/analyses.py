"""Analyses that lie beside a result, METHOD/analysis/NAME.json, as sections: one a name, methods side by side.

A file is a view, a list of views, or has one as its `view`, like those of `kenyon analyse`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError
from kenyon.report.page.entries import Group
from kenyon.report.page.sections import Section
from kenyon.views import View, ViewError, checked


def analyses(group: Group) -> list[Section]:
    """Of one name first what shows methods together, BENCHMARK/analysis/NAME.json, then each of them."""
    found: dict[str, list[View]] = {}
    above = {(entry.folder.parent, entry.file.rsplit("/", 2)[0]) for entry in group.entries if not entry.result.point}
    folders = [(*one, "") for one in sorted(above)]
    folders += [(entry.folder, entry.file.rpartition("/")[0], entry.label) for entry in group.entries]
    for folder, told, label in folders:
        for path in sorted((folder / "analysis").glob("*.json")):
            views = [_titled(view, label, f"{told}/analysis/{path.name}") for view in _views(path)]
            if views:
                found.setdefault(path.stem, []).extend(views)
    return [
        Section(name.replace("_", " ").replace("-", " ").capitalize(), _alike(views), small=_small(views))
        for name, views in sorted(found.items())
    ]


def _views(path: Path) -> list[View]:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path} cannot be read as JSON ({error}). Mend it or move it away.") from error
    body = body["view"] if isinstance(body, dict) and "view" in body else body
    if not _meant_as_views(body):
        return []
    try:
        return [checked(one) for one in (body if isinstance(body, list) else [body])]
    except ViewError as error:
        raise ResultsError(
            f"{path} is not a view: {error}. kenyon.views describes the form. Mend it or move it away."
        ) from error


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
