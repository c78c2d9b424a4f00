"""Analyses that lie beside a result, METHOD/analysis/NAME.json, as sections: one a name, methods side by side.

A file is a view, a list of views, or has one as its `view`, like those of `kenyon analyse`.
"""

from __future__ import annotations

import json
from typing import Any

from kenyon.errors import ResultsError
from kenyon.report.page.entries import Entry, Group
from kenyon.report.page.sections import Section
from kenyon.views import View, ViewError, checked


def analyses(group: Group) -> list[Section]:
    found: dict[str, list[View]] = {}
    for entry in group.entries:
        for name, views in _of(entry):
            found.setdefault(name, []).extend(views)
    return [
        Section(name.replace("_", " ").replace("-", " ").capitalize(), _alike(views), small=_small(views))
        for name, views in sorted(found.items())
    ]


def _of(entry: Entry) -> list[tuple[str, list[View]]]:
    found = []
    for path in sorted((entry.folder / "analysis").glob("*.json")):
        try:
            body = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path} cannot be read as JSON ({error}). Mend it or move it away.") from error
        body = body["view"] if isinstance(body, dict) and "view" in body else body
        if not _meant_as_views(body):
            continue
        views = []
        for one in body if isinstance(body, list) else [body]:
            try:
                view = checked(one)
            except ViewError as error:
                raise ResultsError(
                    f"{path} is not a view: {error}. kenyon.views describes the form. Mend it or move it away."
                ) from error
            origin = {**view.get("origin", {}), "file": f"{entry.file.rpartition('/')[0]}/analysis/{path.name}"}
            named = entry.label in view["title"]
            title = view["title"] if named else f"{entry.label}: {view['title']}"
            views.append({**view, "title": title, "origin": origin})
        found.append((path.stem, views))
    return found


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
