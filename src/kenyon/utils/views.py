"""Views: charts and tables as plain JSON, drawn by `report.plots` and `report.page`.

A view is an object with

    kind    "lines", "scatter", "heatmap", "bars", "images" or "table"
    title   text, not empty
    data    by kind, below
    note    optional text under the title
    origin  optional object of text, numbers and lists of them: how the numbers were made
    digits  optional, 0 to 6: decimals that are shown (2)

Numbers are finite, below 1e300, or null (not measured). Text is shown literally; nothing in it is markup. Series
whose name is the label of a result have its color. Other keys are ignored. By kind:

    lines    x, y: names of the axes. data: [{"name", "x": [n], "y": [n], "error": [n]?, "dashed": true?, "thin":
             true?}] All lists of a series are equally long, x without null; error is half the height of a band; thin
             lines are drawn behind the others and have no entry in the legend.
    scatter  x, y: names of the axes. data: [{"name", "x": [n], "y": [n], "x_error": [n]?, "y_error": [n]?,
             "labels": [text]?}]
    heatmap  x, y: names of the axes; rows, columns: names (text or numbers) along y and x.
             data: [[n]] with one list per row, or frames to choose from: [{"name", "data": [[n]],
             "columns"?: [text]}].
             scale: "sequential" or "diverging" (about 0)?; range: [low, high]?
    bars     x: name of the value axis. data: [{"name", "value", "error"?, "points": [n]?, "reference"?, "label"?}]
             label: the result whose color the bar has, if it is not its name. reference_name: text in the legend?;
             style: "bars" (from 0) or "dots"?
    images   data: [{"src": "data:image/png;base64,...", "alt": text, "caption": text?}], PNG, JPEG, GIF or WebP.
             across: number of images in a row?
    table    columns: [text]. data: rows of text, numbers and null, as long as columns; the first cell names the row

An example, complete:

    {"kind": "lines", "title": "Loss along the path", "x": "position", "y": "loss",
     "data": [{"name": "training", "x": [0, 0.5, 1], "y": [0.31, 0.84, 0.29], "error": [0.01, 0.03, 0.01]}]}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from kenyon.errors import KenyonError, shown

View = dict[str, Any]

Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]
Measured = Number | None
IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
Plain = str | float | bool | None | list[str | float | bool]


class ViewError(KenyonError):
    """A view that breaks the rules above: the place in it, and what was expected."""


class _View(Struct):
    """The keys that all kinds have."""

    title: str
    note: str | UnsetType = UNSET
    origin: dict[str, Plain] = {}
    digits: Annotated[int, Meta(ge=0, le=6)] = 2

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError("title must be text that is not empty")


class _Line(Struct):
    name: str
    x: list[Number]
    y: list[Measured]
    error: list[Measured] | UnsetType = UNSET
    dashed: bool = False
    thin: bool = False

    def __post_init__(self) -> None:
        _equally_long(len(self.x), y=self.y, error=self.error)


class _Lines(_View, tag_field="kind", tag="lines", kw_only=True):
    x: str
    y: str
    data: list[_Line]


class _Points(Struct):
    name: str
    x: list[Measured]
    y: list[Measured]
    x_error: list[Measured] | UnsetType = UNSET
    y_error: list[Measured] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET

    def __post_init__(self) -> None:
        _equally_long(len(self.x), y=self.y, x_error=self.x_error, y_error=self.y_error, labels=self.labels)


class _Scatter(_View, tag_field="kind", tag="scatter", kw_only=True):
    x: str
    y: str
    data: list[_Points]


class _Frame(Struct):
    name: str
    data: list[list[Measured]]
    columns: list[str | Number] | UnsetType = UNSET


class _Heatmap(_View, tag_field="kind", tag="heatmap", kw_only=True):
    x: str
    y: str
    rows: list[str | Number]
    columns: list[str | Number]
    data: Annotated[list[_Frame | list[Measured]], Meta(min_length=1)]
    scale: Literal["sequential", "diverging"] = "sequential"
    range: tuple[Number, Number] = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        frames = [one for one in self.data if isinstance(one, _Frame)]
        if frames and len(frames) < len(self.data):
            raise ValueError("data must be rows of numbers or frames, not both")
        grids: list[Any] = [frame.data for frame in frames] or [self.data]
        for number, grid in enumerate(grids):
            if [len(row) for row in grid] != [len(self.columns)] * len(self.rows):
                where = f"data[{number}].data" if frames else "data"
                raise ValueError(f"{where} must be {len(self.rows)} rows x {len(self.columns)} columns")
        for number, frame in enumerate(frames):
            _equally_long(len(self.columns), **{f"data[{number}].columns": frame.columns})
        if not self.range[0] < self.range[1]:
            raise ValueError("range must be [low, high] with low below high")


class _Bar(Struct):
    name: str
    value: Measured
    error: Measured = None
    reference: Measured = None
    label: str = ""
    points: list[Measured] = []


class _Bars(_View, tag_field="kind", tag="bars", kw_only=True):
    x: str
    data: list[_Bar]
    reference_name: str = ""
    style: Literal["bars", "dots"] = "bars"


class _Picture(Struct):
    src: str
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        if IMAGE.fullmatch(self.src) is None:
            raise ValueError("src must be a data URI of a PNG, JPEG, GIF or WebP in base64")


class _Images(_View, tag_field="kind", tag="images", kw_only=True):
    data: list[_Picture]
    across: Annotated[int, Meta(ge=1)] = 1


class _Table(_View, tag_field="kind", tag="table", kw_only=True):
    columns: Annotated[list[str], Meta(min_length=1)]
    data: list[list[str | Number | None]]

    def __post_init__(self) -> None:
        super().__post_init__()
        _equally_long(len(self.columns), **{f"data[{i}]": row for i, row in enumerate(self.data)})


KINDS: dict[str, type[_View]] = {
    "lines": _Lines,
    "scatter": _Scatter,
    "heatmap": _Heatmap,
    "bars": _Bars,
    "images": _Images,
    "table": _Table,
}


def checked(view: Any) -> View:
    """Return the view reduced to the keys above, NumPy values as Python's; raise ViewError if it breaks a rule."""
    try:
        plain: View = msgspec.to_builtins(view, enc_hook=_builtin)
        fields = KINDS[plain["kind"]]
        msgspec.convert(plain, fields)
    except (KeyError, TypeError):
        raise ViewError(f"a view must be an object whose kind is one of {', '.join(KINDS)}") from None
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        found = re.fullmatch(r"(.*) - at `\$\.?(.+)`", str(error), re.DOTALL)
        raise ViewError(f"{found[2]}: {found[1]}" if found else str(error)) from None
    names = ("kind", "title", "note", "origin", "digits", "data", *fields.__struct_fields__)
    return {name: plain[name] for name in dict.fromkeys(names) if name in plain} | {"digits": plain.get("digits", 2)}


def frames(view: View) -> list[dict[str, Any]]:
    """Return the frames of a heat map; empty if it has one grid without a name."""
    return [one for one in view["data"] if isinstance(one, dict)]


def _builtin(value: Any) -> Any:
    """Convert NumPy's arrays and numbers."""
    if not hasattr(value, "tolist"):
        raise ViewError(f"a view must hold text, numbers, lists and objects, not {shown(value)}")
    return value.tolist()


def _equally_long(length: int, **lists: Sequence[Any] | UnsetType) -> None:
    for name, values in lists.items():
        if values is not UNSET and len(values) != length:
            raise ValueError(f"{name} must have {length} entries, not {len(values)}")


Numbers = Iterable[float | int | None]


@dataclass(frozen=True)
class Series:
    """A named series of points; errors are half the height of a band or bar."""

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
    """A named value with its error, single points and a reference."""

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
    """Convert arrays and numbers to Python's with `digits` significant digits; NaN and infinity become None."""
    match values.tolist() if hasattr(values, "tolist") else values:
        case list() | tuple() as several:
            return [numbers(v, digits) for v in several]
        case dict() as named:
            return {name: numbers(v, digits) for name, v in named.items()}
        case float() as number:
            return float(f"{number:.{digits}g}") if math.isfinite(number) else None
        case other:
            return other


def lines(title: str, x: str, y: str, series: Iterable[Series], note: str = "", *, digits: int = 2) -> View:
    """Make a view of lines through the points of series."""
    return _view("lines", title, note, digits, x=x, y=y, data=[one.as_dict() for one in series])


def scatter(title: str, x: str, y: str, series: Iterable[Series], note: str = "", *, digits: int = 2) -> View:
    """Make a view of the points of series."""
    return _view("scatter", title, note, digits, x=x, y=y, data=[one.as_dict() for one in series])


def bars(title: str, axis: str, data: Iterable[Bar], note: str = "", *, reference: str = "", digits: int = 2) -> View:
    """Make a view of named values side by side."""
    named = {"reference_name": reference} if reference else {}
    return _view("bars", title, note, digits, x=axis, data=[bar.as_dict() for bar in data], **named)


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
    """Make a view of a matrix of numbers as colors."""
    names = {"columns": list(columns), "rows": list(rows)}
    return _view("heatmap", title, note, digits, x=x, y=y, **names, data=numbers(values), scale=scale)


def images(title: str, pictures: Iterable[dict[str, str]], across: int, note: str = "") -> View:
    """Make a view of pictures, `across` in a row."""
    return _view("images", title, note, 2, data=list(pictures), across=across)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "", *, digits: int = 2
) -> View:
    """Make a view of rows of text and numbers."""
    return _view("table", title, note, digits, columns=list(columns), data=numbers([list(row) for row in rows]))


def _view(kind: str, title: str, note: str, digits: int, **body: Any) -> View:
    return checked({"kind": kind, "title": title, **({"note": note} if note else {}), "digits": digits, **body})
