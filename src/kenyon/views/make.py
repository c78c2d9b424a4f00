"""Views from numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kenyon.views.form import View, checked

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
