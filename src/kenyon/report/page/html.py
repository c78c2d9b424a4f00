"""Escaped HTML from Python values, and views as figures.

`tag` is the one place where text becomes HTML: a plain string is escaped, `Markup` is not escaped again. So a name
from a result file never becomes markup, whatever it contains.

A figure has a caption, an element that the script draws in, and the numbers as a table. The script draws from the
values of the tables, so that charts fit the width of the screen; without it, and for a screen reader, the tables have
all the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from kenyon.utils.views import View, frames

if TYPE_CHECKING:
    from kenyon.report.page.entries import Section

VOID = {"img", "meta", "link", "col", "br", "wbr"}
OPTIONAL_END = {"td", "th", "tr", "tbody", "thead", "dt", "dd", "option"}  # end tags left out, as tables are long
FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Make an element. Attributes: `class_` for class, `data_value` for data-value; None and False are left out."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in VOID:
        return Markup(opened)
    end = "" if name in OPTIONAL_END else f"</{name}>"
    return Markup(f"{opened}{''.join(map(_child, children))}{end}")


def joined(*children: Child) -> Markup:
    return Markup("".join(map(_child, children)))


def breakable(label: str) -> Markup:
    """Make a label whose line breaks are between its values."""
    parts = re.split(r"(?<=,)(?=\S)|(?<=, )|(?=\[)", label)
    if len(parts) == 1 or any(len(part) > 30 or " " in part.rstrip(" ") for part in parts):
        return joined(label)
    first, *others = (
        joined(tag("span", part.rstrip(" "), class_="whole"), " " * part.endswith(" ")) for part in parts
    )
    return joined(first, *(joined(tag("wbr"), other) for other in others))


def _child(child: Child) -> str:
    match child:
        case None:
            return ""
        case Markup():
            return child
        case str() | int() | float():
            return escape(_printable(str(child)))
    return "".join(map(_child, child))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(_printable(str(value)))}"'


def _printable(text: str) -> str:
    """Replace control characters and lone surrogates, which HTML does not allow."""
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


class Ids:
    """Unique, readable and safe ids of elements."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def new(self, *words: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:60] or "place"
        name, number = base, 2
        while name in self._given:
            name, number = f"{base}-{number}", number + 1
        self._given.add(name)
        return name


MISSING = "–"


def shown(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return a number with a true minus sign, or a dash."""
    if value is None:
        return MISSING
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", "−")


def with_error(value: float | None, error: float | None, digits: int = 2) -> str:
    return shown(value, digits) + (f" ± {shown(error, digits)}" if value is not None and error is not None else "")


class Figures:
    """Sections as HTML, and the views that the script draws, by the id of their element."""

    def __init__(self, ids: Ids) -> None:
        self.ids, self.views = ids, dict[str, View]()
        self.names: dict[tuple[str, ...], int] = {}  # names of columns, which many frames share, by number

    def section(self, section: Section, place: str) -> Markup:
        figures = [self.figure(view, place) for view in section.views]
        kind = "views small" if section.small else "views"
        return tag(
            "section",
            tag("h3", section.title, id=f"{place}-title"),
            tag("p", section.note, class_="note") if section.note else None,
            self._controls(section, place) if section.small else None,
            tag("div", figures, class_=kind),
            class_="part",
            id=place,
            aria_labelledby=f"{place}-title",
        )

    def figure(self, view: View, where: str) -> Markup:
        place = self.ids.new(where, view["kind"])
        title = f"{place}-title"
        table = TABLES[view["kind"]]
        drawn = view["kind"] in ("lines", "scatter", "heatmap", "bars")
        if drawn:
            self.views[place] = self._numbered(view)
        numbers = scrolled(table(view), view["title"])
        return tag(
            "figure",
            tag(
                "figcaption",
                tag("h3" if where == "overview" else "h4", breakable(view["title"]), id=title),
                tag("p", view["note"], class_="note") if view.get("note") else None,
            ),
            tag("div", class_="chart", id=place, data_view=place, hidden=True) if drawn else None,
            tag("details", tag("summary", "Numbers"), numbers, class_="numbers") if drawn else numbers,
            _origin(view),
            class_=f"view {view['kind']}",
            aria_labelledby=title,
        )

    def _numbered(self, view: View) -> View:
        def frame(one: Any) -> Any:
            if "columns" not in one:
                return one
            return {**one, "columns": self.names.setdefault(tuple(map(str, one["columns"])), len(self.names))}

        named = view["kind"] == "heatmap" and frames(view)
        return {**view, "data": [frame(one) for one in named]} if named else view

    def _controls(self, section: Section, place: str) -> Markup:
        """One choice of frame and one color scale for all heat maps of a section."""
        maps = [view for view in section.views if view["kind"] == "heatmap"]
        names = dict.fromkeys(frame["name"] for view in maps for frame in frames(view))
        options = [tag("option", name, value=name) for name in names]
        choice = tag("label", "Show ", tag("select", options, data_frames=place), class_="choice", hidden=True)
        scales = {(v.get("scale", "sequential"), *v["range"], v["digits"]) for v in maps if "range" in v}
        ramp = _ramp(*next(iter(scales))) if len(scales) == 1 else None
        return tag("div", choice if len(names) > 1 else None, ramp, class_="controls")


def _ramp(scale: str, low: float, high: float, digits: int) -> Markup:
    whole = 0 if low == int(low) and high == int(high) else digits
    return tag(
        "span",
        shown(low, whole, sign=scale == "diverging"),
        tag("span", class_=f"ramp {scale}"),
        shown(high, whole, sign=scale == "diverging"),
        class_="legend",
        role="img",
        aria_label=f"Colours from {low:g} to {high:g}",
    )


def scrolled(inside: Markup, name: str) -> Markup:
    """Make a scrolling box, reachable by keyboard."""
    return tag("div", inside, class_="scroll", tabindex=0, role="region", aria_label=f"{name}, table")


def table(caption: str, head: Sequence[Child], rows: Sequence[Sequence[Child]]) -> Markup:
    """Make a table with a caption, names of columns, and the first cell of a row as its name."""
    return tag(
        "table",
        tag("caption", tag("div", caption)),
        tag("thead", tag("tr", [tag("th", name, scope="col") for name in head])),
        tag("tbody", [_row(*row) for row in rows]),
    )


def _row(name: Child, *cells: Child) -> Markup:
    return tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells])


def _lines(view: View) -> Markup:
    places = sorted({x for one in view["data"] for x in one["x"]})
    known = [_by_place(one) for one in view["data"]]
    d = view["digits"]
    rows = [[f"{x:g}", *(with_error(*some.get(x, (None, None)), d) for some in known)] for x in places]
    caption = f"{view['title']}: {view['y']}, by {view['x']}"
    return table(caption, [view["x"], *(one["name"] for one in view["data"])], rows)


def _by_place(one: dict[str, Any]) -> dict[float, tuple[float | None, float | None]]:
    errors = one.get("error", [None] * len(one["x"]))
    return {x: (y, e) for x, y, e in zip(one["x"], one["y"], errors, strict=True)}


def _scatter(view: View) -> Markup:
    rows = []
    for one in view["data"]:
        blank = [None] * len(one["x"])
        columns = (one["x"], one.get("x_error", blank), one["y"], one.get("y_error", blank))
        for label, x, dx, y, dy in zip(one.get("labels", [""] * len(blank)), *columns, strict=True):
            name = f"{one['name']} {label}".strip()
            rows.append([name, with_error(x, dx, view["digits"]), with_error(y, dy, view["digits"])])
    return table(view["title"], ["", view["x"], view["y"]], rows)


def _heatmap(view: View) -> Markup:
    """The first frame; the script replaces it when another one is chosen."""
    named = frames(view)
    texts = [[shown(v, view["digits"]) for v in row] for row in (named[0]["data"] if named else view["data"])]
    body = [[str(name), *row] for name, row in zip(view["rows"], texts, strict=True)]
    frame = f", {named[0]['name']}" if named else ""
    caption = joined(f"{view['title']}; rows: {view['y']}, columns: {view['x']}", tag("span", frame))
    return table(caption, ["", *map(str, view["columns"])], body)


def _bars(view: View) -> Markup:
    reference = view.get("reference_name") or "reference"
    referred = any(one.get("reference") is not None for one in view["data"])
    head = ["", view["x"], *([reference] if referred else []), "single values"]
    rows = []
    for one in view["data"]:
        d = view["digits"]
        known = [shown(one.get("reference"), d)] if referred else []
        points = " ".join(shown(v, d) for v in one.get("points", []))
        rows.append([one["name"], with_error(one["value"], one.get("error"), d), *known, points])
    return table(view["title"], head, rows)


def _images(view: View) -> Markup:
    pictures = [
        tag(
            "figure",
            tag("img", src=one["src"], alt=one["alt"]),
            tag("figcaption", one["caption"]) if one.get("caption") else None,
        )
        for one in view["data"]
    ]
    return tag("div", pictures, class_="pictures")


def _table(view: View) -> Markup:
    rows = [[_cell(v, view["digits"]) for v in row] for row in view["data"]]
    return table(view["title"], view["columns"], rows)


def _cell(value: str | float | None, digits: int) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else shown(value, digits)


def _origin(view: View) -> Markup | None:
    if not view.get("origin"):
        return None
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in view["origin"].items()}
    return tag("p", "Origin: " + "; ".join(f"{k}: {v}" for k, v in texts.items()), class_="note origin-note")


TABLES = {
    "lines": _lines,
    "scatter": _scatter,
    "heatmap": _heatmap,
    "bars": _bars,
    "images": _images,
    "table": _table,
}
