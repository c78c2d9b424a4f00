"""What an analysis looks like, as plain data that any report can draw. See docs/analysis.md.

Every plot has `kind`, `title` and `note` (what the numbers are), and by kind:

    lines    x, y (labels of the axes), series: [{name, x: [...], y: [...], error?: [...], thin?: true}]
    scatter  x, y, series: [{name, x: [...], y: [...], labels?: [...]}]
    heatmap  x, y, columns: [...], rows: [...], values: [[...]], unit, centre? (a value between two colours)
    bars     y, categories: [...], series: [{name, values: [...], error?: [...], points?: [[...]]}]
    images   columns: [...], rows: [...], cells: [[PNG in base64]]
    table    columns: [...], rows: [[...]]

A number that was not measured is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from kenyon.metrics import Array

Plot = dict[str, Any]


def numbers(values: Any, digits: int = 6) -> Any:
    """Arrays and numbers as Python's, with so many significant digits; what is not finite as None."""
    if isinstance(values, np.ndarray):
        return numbers(values.tolist(), digits)
    if isinstance(values, (list, tuple)):
        return [numbers(v, digits) for v in values]
    if isinstance(values, dict):
        return {name: numbers(v, digits) for name, v in values.items()}
    if isinstance(values, float):
        return float(f"{values:.{digits}g}") if isfinite(values) else None
    return values


def line(name: str, x: Sequence[float] | Array, y: Array, error: Array | None = None, *, thin: bool = False) -> Plot:
    series = {"name": name, "x": numbers(list(x)), "y": numbers(y)}
    return series | ({} if error is None else {"error": numbers(error)}) | ({"thin": True} if thin else {})


def lines(title: str, x: str, y: str, series: list[Plot], note: str = "") -> Plot:
    return {"kind": "lines", "title": title, "note": note, "x": x, "y": y, "series": series}


def scatter(title: str, x: str, y: str, series: list[Plot], note: str = "") -> Plot:
    return {"kind": "scatter", "title": title, "note": note, "x": x, "y": y, "series": series}


def heatmap(
    title: str,
    x: str,
    y: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Array,
    *,
    unit: str,
    centre: float | None = None,
    note: str = "",
) -> Plot:
    axes = {"x": x, "y": y, "columns": list(columns), "rows": list(rows)}
    middle = {} if centre is None else {"centre": centre}
    return {
        "kind": "heatmap",
        "title": title,
        "note": note,
        **axes,
        "values": numbers(values),
        "unit": unit,
        **middle,
    }


def bars(title: str, y: str, categories: Sequence[str], series: list[Plot], note: str = "") -> Plot:
    return {"kind": "bars", "title": title, "note": note, "y": y, "categories": list(categories), "series": series}


def bar(name: str, runs: Sequence[Sequence[float]]) -> Plot:
    """One bar a category: the mean of its runs, their standard error where there are several, and every run."""
    means = [float(np.mean(some)) for some in runs]
    errors = [standard_error(np.array(some, dtype=float).reshape(-1, 1))[0] for some in runs]
    return {"name": name, "values": numbers(means), "error": numbers(errors), "points": numbers([*map(list, runs)])}


def images(title: str, columns: Sequence[str], rows: Sequence[str], cells: list[list[str]], note: str = "") -> Plot:
    return {
        "kind": "images",
        "title": title,
        "note": note,
        "columns": list(columns),
        "rows": list(rows),
        "cells": cells,
    }


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> Plot:
    return {
        "kind": "table",
        "title": title,
        "note": note,
        "columns": list(columns),
        "rows": numbers([*map(list, rows)]),
    }


def standard_error(runs: Array) -> Array:
    """Over the first axis; NaN for a single run."""
    if len(runs) < 2:
        return np.full(runs.shape[1:], np.nan)
    error: Array = runs.std(0, ddof=1) / np.sqrt(len(runs))
    return error
