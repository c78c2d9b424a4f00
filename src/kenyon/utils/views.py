"""The form of a view: one chart or table as plain JSON, for whatever draws it (`report.plots`, `report.page`).

A view is an object with

    kind    "lines", "scatter", "heatmap", "bars", "images" or "table"
    title   text, not empty
    data    by kind, below
    note    optional text under the title
    origin  optional object of text, numbers and lists of them: how the numbers were made
    digits  optional, 0 to 6: decimals that are shown (2)

Numbers are finite, below 1e300, or null (not measured). Text is shown as it is; nothing in it is markup. Series whose
name is the label of a result have its colour. Other keys are ignored. By kind:

    lines    x, y: names of the axes. data: [{"name", "x": [n], "y": [n], "error": [n]?, "dashed": true?, "thin":
             true?}] All lists of a series are equally long, x without null; error is half the height of a band; thin
             lines stand behind the others and need no name of their own.
    scatter  x, y: names of the axes. data: [{"name", "x": [n], "y": [n], "x_error": [n]?, "y_error": [n]?,
             "labels": [text]?}]
    heatmap  x, y: names of the axes; rows, columns: names (text or numbers) along y and x.
             data: [[n]] with one list a row, or frames to choose from: [{"name", "data": [[n]], "columns"?: [text]}].
             scale: "sequential" or "diverging" (about 0)?; range: [low, high]?
    bars     x: name of the value axis. data: [{"name", "value", "error"?, "points": [n]?, "reference"?, "label"?}]
             label: the result whose colour it has, where that is not its name. reference_name: what a reference is?;
             style: "bars" (from 0) or "dots"?
    images   data: [{"src": "data:image/png;base64,...", "alt": text, "caption": text?}], PNG, JPEG, GIF or WebP.
             across: how many stand side by side?
    table    columns: [text]. data: rows of text, numbers and null, as long as columns; the first cell names the row

An example, complete:

    {"kind": "lines", "title": "Loss along the path", "x": "position", "y": "loss",
     "data": [{"name": "training", "x": [0, 0.5, 1], "y": [0.31, 0.84, 0.29], "error": [0.01, 0.03, 0.01]}]}
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kenyon.errors import KenyonError

View = dict[str, Any]
IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")


class ViewError(KenyonError):
    """What is wrong with a view, and where in it."""


def checked(view: Any) -> View:
    """The view, reduced to the keys above; raises ViewError otherwise."""
    _need(isinstance(view, dict), "a view is an object")
    kind = view.get("kind")
    _need(isinstance(kind, str) and kind in KINDS, f"kind is one of {', '.join(KINDS)}, not {_short(kind)}")
    _need(_text(view.get("title")) and bool(view["title"].strip()), "title is a text that is not empty")
    _need("note" not in view or _text(view["note"]), "note is a text")
    digits = view.get("digits", 2)
    _need(isinstance(digits, int) and not isinstance(digits, bool) and 0 <= digits <= 6, "digits is 0 to 6")
    _need("data" in view, "there is no data")
    origin = view.get("origin", {})
    _need(isinstance(origin, dict) and all(map(_plain, origin.values())), "origin is an object of plain values")
    check, keys = KINDS[kind]
    check(view)
    common = ("kind", "title", "note", "origin", "digits", "data")
    return {key: view[key] for key in (*common, *keys) if key in view} | {"digits": digits}


def _need(fits: bool, what: str) -> None:
    if not fits:
        raise ViewError(what)


def _short(value: Any) -> str:
    return f"{value!r:.40}"


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any, *, missing: bool = True) -> bool:
    if value is None:
        return missing
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _numbers(value: Any, length: int | None = None, *, missing: bool = True) -> bool:
    fits = isinstance(value, list) and all(_number(v, missing=missing) for v in value)
    return fits and length in (None, len(value))


def _plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None))) or (
        isinstance(value, list) and all(isinstance(v, (str, int, float)) for v in value)
    )


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(_text(v) or _number(v, missing=False) for v in value)


def _axes(view: View, *names: str) -> None:
    for name in names:
        _need(_text(view.get(name)), f"{name} is a text: the name of that axis")


def _series(view: View) -> list[tuple[str, Any]]:
    _need(isinstance(view["data"], list), "data is a list")
    found = [(f"data[{i}]", one) for i, one in enumerate(view["data"])]
    for where, one in found:
        _need(isinstance(one, dict) and _text(one.get("name")), f"{where} is an object with a name")
    return found


def _lines(view: View) -> None:
    _axes(view, "x", "y")
    for where, one in _series(view):
        _need(_numbers(one.get("x"), missing=False), f"{where}.x is a list of numbers")
        _need(_numbers(one.get("y"), len(one["x"])), f"{where}.y is as many numbers or null as x")
        _need("error" not in one or _numbers(one["error"], len(one["x"])), f"{where}.error is as many numbers as x")
        for name in ("dashed", "thin"):
            _need(isinstance(one.get(name, False), bool), f"{where}.{name} is true or false")


def _scatter(view: View) -> None:
    _axes(view, "x", "y")
    for where, one in _series(view):
        _need(_numbers(one.get("x")), f"{where}.x is a list of numbers or null")
        n = len(one["x"])
        for name in ("y", "x_error", "y_error"):
            _need((name != "y" and name not in one) or _numbers(one.get(name), n), f"{where}.{name} is {n} numbers")
        labels = one.get("labels", [""] * n)
        fits = isinstance(labels, list) and len(labels) == n and all(map(_text, labels))
        _need(fits, f"{where}.labels is {n} texts")


def _heatmap(view: View) -> None:
    _axes(view, "x", "y")
    _need(_names(view.get("rows")) and _names(view.get("columns")), "rows and columns are lists of names")
    data = view["data"]
    _need(isinstance(data, list) and bool(data), "data is rows of numbers, or frames")
    if isinstance(data[0], dict):
        for where, frame in _series(view):
            _need(_grid(frame.get("data"), view), f"{where}.data is rows x columns numbers or null")
            names = frame.get("columns", view["columns"])
            _need(_names(names) and len(names) == len(view["columns"]), f"{where}.columns is a name a column")
    else:
        _need(_grid(data, view), "data is rows x columns numbers or null")
    _need(view.get("scale", "sequential") in ("sequential", "diverging"), "scale is sequential or diverging")
    limits = view.get("range", [0, 1])
    _need(_numbers(limits, 2, missing=False) and limits[0] < limits[1], "range is [low, high]")


def _grid(rows: Any, view: View) -> bool:
    width = len(view["columns"])
    return isinstance(rows, list) and len(rows) == len(view["rows"]) and all(_numbers(r, width) for r in rows)


def _bars(view: View) -> None:
    _axes(view, "x")
    for where, one in _series(view):
        for name in ("value", "error", "reference"):
            _need(_number(one.get(name)), f"{where}.{name} is a number or null")
        _need("value" in one, f"{where} has no value")
        _need(_text(one.get("label", "")), f"{where}.label is a text")
        _need(_numbers(one.get("points", [])), f"{where}.points is a list of numbers")
    _need(_text(view.get("reference_name", "")), "reference_name is a text")
    _need(view.get("style", "bars") in ("bars", "dots"), "style is bars or dots")


def _images(view: View) -> None:
    _need(isinstance(view["data"], list), "data is a list")
    for i, one in enumerate(view["data"]):
        where = f"data[{i}]"
        _need(isinstance(one, dict) and _text(one.get("alt")), f"{where} is an object with alt, a text")
        fits = _text(one.get("src")) and IMAGE.fullmatch(one["src"]) is not None
        _need(fits, f"{where}.src is a data URI of a PNG, JPEG, GIF or WebP in base64")
        _need(_text(one.get("caption", "")), f"{where}.caption is a text")
    across = view.get("across", 1)
    _need(isinstance(across, int) and not isinstance(across, bool) and across >= 1, "across is 1 or larger")


def _table(view: View) -> None:
    columns: Any = view.get("columns")
    _need(isinstance(columns, list) and all(map(_text, columns)) and bool(columns), "columns is a list of texts")
    _need(isinstance(view["data"], list), "data is a list of rows")
    for i, row in enumerate(view["data"]):
        fits = isinstance(row, list) and len(row) == len(columns) and all(_text(v) or _number(v) for v in row)
        _need(fits, f"data[{i}] is {len(columns)} texts, numbers or null")


KINDS: dict[str, tuple[Callable[[View], None], tuple[str, ...]]] = {
    "lines": (_lines, ("x", "y")),
    "scatter": (_scatter, ("x", "y")),
    "heatmap": (_heatmap, ("x", "y", "rows", "columns", "scale", "range")),
    "bars": (_bars, ("x", "reference_name", "style")),
    "images": (_images, ("across",)),
    "table": (_table, ("columns",)),
}

Numbers = Iterable[float | int | None]


@dataclass(frozen=True)
class Series:
    """Numbers of one name; errors are half the height of a band or bar."""

    name: str
    x: Numbers
    y: Numbers
    error: Numbers | None = None
    x_error: Numbers | None = None
    y_error: Numbers | None = None
    labels: Sequence[str] | None = None
    dashed: bool = False
    thin: bool = False

    def as_dict(self) -> dict[str, Any]:
        lists = {n: v for n in ("x", "y", "error", "x_error", "y_error") if (v := getattr(self, n)) is not None}
        found: dict[str, Any] = {"name": self.name, **{name: numbers(list(v)) for name, v in lists.items()}}
        if self.labels is not None:
            found["labels"] = list(self.labels)
        return found | {name: True for name in ("dashed", "thin") if getattr(self, name)}


@dataclass(frozen=True)
class Bar:
    """A named value with its error, the points behind it and a reference beside it."""

    name: str
    value: float
    error: float | None = None
    points: Numbers = ()
    reference: float | None = None

    def as_dict(self) -> dict[str, Any]:
        body = {"name": self.name, "value": numbers(self.value), "error": numbers(self.error)}
        points, reference = numbers(list(self.points)), numbers(self.reference)
        return body | ({"points": points} if points else {}) | ({} if reference is None else {"reference": reference})


def numbers(values: Any, digits: int = 6) -> Any:
    """Arrays and numbers as Python's, with so many significant digits; what is not finite as None."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [numbers(v, digits) for v in values]
    if isinstance(values, dict):
        return {name: numbers(v, digits) for name, v in values.items()}
    if isinstance(values, float):
        return float(f"{values:.{digits}g}") if math.isfinite(values) else None
    return values


def lines(title: str, x: str, y: str, series: Iterable[Series], note: str = "", *, digits: int = 2) -> View:
    """Lines through the points of series."""
    return _made("lines", title, note, digits, x=x, y=y, data=[one.as_dict() for one in series])


def scatter(title: str, x: str, y: str, series: Iterable[Series], note: str = "", *, digits: int = 2) -> View:
    """The points of series."""
    return _made("scatter", title, note, digits, x=x, y=y, data=[one.as_dict() for one in series])


def bars(title: str, axis: str, data: Iterable[Bar], note: str = "", *, reference: str = "", digits: int = 2) -> View:
    """Named values side by side."""
    named = {"reference_name": reference} if reference else {}
    return _made("bars", title, note, digits, x=axis, data=[bar.as_dict() for bar in data], **named)


def heatmap(
    title: str,
    x: str,
    y: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Any,
    note: str = "",
    *,
    scale: str = "sequential",
    digits: int = 2,
) -> View:
    """A matrix of numbers as colours."""
    names = {"columns": list(columns), "rows": list(rows)}
    return _made("heatmap", title, note, digits, x=x, y=y, **names, data=numbers(values), scale=scale)


def images(title: str, pictures: Iterable[dict[str, str]], across: int, note: str = "") -> View:
    """Pictures, so many in a row."""
    return _made("images", title, note, 2, data=list(pictures), across=across)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "", *, digits: int = 2
) -> View:
    """Rows of words and numbers."""
    return _made("table", title, note, digits, columns=list(columns), data=numbers([list(row) for row in rows]))


def _made(kind: str, title: str, note: str, digits: int, **body: Any) -> View:
    return checked({"kind": kind, "title": title, **({"note": note} if note else {}), "digits": digits, **body})
