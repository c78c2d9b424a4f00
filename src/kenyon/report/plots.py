"""Views drawn with matplotlib: a single view, or several on a page."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.report.figures import COLOURS, SPARE, save_figure, text_on
from kenyon.utils.views import View, frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN = ("#3b75af", "#c53a32", "#519e3e", "#e8a33d", "#8d69b8", "#84584e", "#4fa3a5", "#8c8c8c")
IN_FIGURES = {"scl": "ewc", "mcl": "mcl-ewc", "caf": "caf-ewc", "jt": "joint", "icl": "icl-ewc"}
FEW = 25  # most points of a line that have markers
MANY = 5  # most lines with the legend inside the chart; that of more is next to it
LABELLED = 150  # most cells of a heat map with their number
SUFFIXES = (".png", ".svg", ".pdf")
LETTER = 0.075  # width of a letter of 8 points in inches, about
SIDES = 1.4  # inches left and right of a heat map, for names and colours
SLANTED: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}


def draw_views(
    views: Sequence[View], path: Path, *, title: str = "", columns: int = 1, suffixes: Sequence[str] = SUFFIXES
) -> list[Path]:
    """Draw views in rows of `columns`, as PNG, SVG and PDF: files named like `path` with these suffixes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    views = _one_style(views)
    rows = [views[start : start + columns] for start in range(0, len(views), columns)]
    sizes = [[_size(view) for view in row] for row in rows]
    widths = [max((row[i][0] for row in sizes if i < len(row)), default=4.0) for i in range(min(columns, len(views)))]
    heights = [max(height for _, height in row) for row in sizes]
    heading = _wrapped(title, sum(widths), 13)
    room = 0.25 * (heading.count("\n") + 1) + 0.15 if title else 0.0
    figure = plt.figure(figsize=(sum(widths), sum(heights) + room), layout="constrained")
    grid = figure.add_gridspec(len(rows), len(widths), width_ratios=widths, height_ratios=heights)
    for i, row in enumerate(rows):
        for j, view in enumerate(row):
            part = figure.add_subfigure(grid[i, j])
            part.suptitle(_wrapped(view["title"], widths[j], 10), fontsize=10)
            if view.get("note"):
                part.supxlabel(_wrapped(view["note"], widths[j], 7), fontsize=7, color="#555555")
            _KINDS[view["kind"]](part, view)
    if title:
        figure.suptitle(heading, fontsize=13)
    save_figure(figure, path.with_suffix(suffixes[0]), suffixes)
    return [path.with_suffix(suffix) for suffix in suffixes]


def _wrapped(text: str, inches: float, points: int) -> str:
    """Wrap text to a width: a letter is about half as wide as it is high."""
    return textwrap.fill(text, max(12, int(inches * 72 / (0.55 * points))))


def _size(view: View) -> tuple[float, float]:
    kind, data = view["kind"], view["data"]
    if kind == "heatmap":
        rows, columns = len(view["rows"]), len(view["columns"])
        return min(9.0, max(4.4, 2.2 + 0.42 * columns)), min(8.0, max(2.6, 1.7 + 0.36 * rows))
    if kind == "images":
        across = view.get("across", 1)
        return max(4.0, 0.4 + 1.25 * across), 0.8 + 1.45 * -(-len(data) // across)
    if kind == "table":
        return max(4.0, 1.5 * len(view["columns"])), 1.0 + 0.28 * len(data)
    if kind == "bars":
        return max(3.8, 1.6 + 0.55 * len(data)), 3.6
    if kind == "lines" and len(named := _named(view)) > MANY:
        return 5.2 + 0.065 * max(map(len, named)), 3.6
    return 4.8, 3.6


def _named(view: View) -> list[str]:
    """Names of the lines in the legend."""
    return [one["name"] for one in view["data"] if not one.get("thin")]


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Return colors by name: methods' own, spare ones for further grid points, a plain set for other names."""
    methods = {COLOURS[_method(name)] for name in names if _method(name) in COLOURS}
    taken: set[str] = set()
    spare, other = iter(SPARE * len(names)), iter(PLAIN * len(names))
    found = {}
    for name in names:
        known = COLOURS.get(_method(name))
        if known is not None and known not in taken:
            found[name] = known
        else:
            free = (colour for colour in (other if known is None else spare) if colour not in methods)
            found[name] = next(free, PLAIN[-1])
        taken.add(found[name])
    return found


def _method(name: str) -> str:
    """Return the method that a name means: a label, or a name in the paper's figures."""
    spelled = name.partition("[")[0].lower().replace(" + ", "-").replace("af-", "af")
    return IN_FIGURES.get(spelled, spelled)


def _floats(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _axes(figure: Figure, view: View) -> Axes:
    axes = figure.subplots()
    axes.set(xlabel=view.get("x", ""), ylabel=view.get("y", ""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    return axes


def _lines(figure: Figure, view: View) -> None:
    from matplotlib.ticker import MaxNLocator

    axes, named = _axes(figure, view), _named(view)
    colours = colours_of(named)
    for one in view["data"]:
        x, y = _floats(one["x"]), _floats(one["y"])
        if one.get("thin"):
            axes.plot(x, y, color="#8c8c8c", alpha=0.6, linewidth=0.9)
            continue
        colour, style = colours[one["name"]], "--" if one.get("dashed") else "-"
        marker = "o" if len(x) <= FEW else None
        axes.plot(x, y, style, color=colour, label=one["name"], marker=marker, markersize=3.5)
        if "error" in one:
            error = np.nan_to_num(_floats(one["error"]))
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
    if all(float(v).is_integer() for one in view["data"] for v in one["x"]):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(named) > MANY:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif len(named) > 1:
        axes.margins(y=0.15)  # room for the legend, which does not see bands
        axes.legend(frameon=False, fontsize=8)


def _scatter(figure: Figure, view: View) -> None:
    axes = _axes(figure, view)
    colours = colours_of([one["name"] for one in view["data"]])
    for one in view["data"]:
        x, y, colour = _floats(one["x"]), _floats(one["y"]), colours[one["name"]]
        across, along = (_errors(one.get(name, [0.0] * len(x))) for name in ("x_error", "y_error"))
        if across.any() or along.any():
            axes.errorbar(x, y, along, across, fmt="none", ecolor=colour, capsize=3, alpha=0.7)
        axes.scatter(x, y, s=42, color=colour, edgecolor="black", linewidth=0.6, label=one["name"], zorder=3)
    axes.margins(0.12)
    axes.legend(frameon=False, fontsize=8)


def _errors(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.nan_to_num(_floats(values))


def _heatmap(figure: Figure, view: View) -> None:
    axes, named = figure.subplots(), frames(view)
    values = np.array([_floats(row) for row in (named[0]["data"] if named else view["data"])])
    diverging = view.get("scale") == "diverging"
    limits: dict[str, Any] = {"cmap": "RdBu_r" if diverging else "viridis"}
    if "range" in view:
        limits |= {"vmin": view["range"][0], "vmax": view["range"][1]}
    elif diverging:
        far = float(np.abs(values[np.isfinite(values)]).max(initial=1e-9))
        limits |= {"vmin": -far, "vmax": far}
    picture = axes.imshow(values, aspect="auto", **limits)
    axes.set(xlabel=view["x"], ylabel=view["y"])
    names = [str(name) for name in view["columns"]]
    long = max(map(len, names), default=0) * LETTER > (_size(view)[0] - SIDES) / max(1, len(names))
    axes.set_xticks(range(len(names)), names, fontsize=8, **(SLANTED if long else {}))
    axes.set_yticks(range(len(view["rows"])), view["rows"], fontsize=8)
    figure.colorbar(picture, ax=axes)
    if values.size > LABELLED:
        return
    for row, column in np.ndindex(values.shape):
        if np.isfinite(values[row, column]):
            colour = text_on(picture.cmap(picture.norm(values[row, column])))
            text = f"{values[row, column]:{'+' if diverging else ''}z.{view.get('digits', 2)}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)


def _bars(figure: Figure, view: View) -> None:
    """Bars from 0, or dots: see `_one_style`."""
    axes = _axes(figure, {**view, "x": "", "y": view["x"]})
    names, values = [one["name"] for one in view["data"]], _floats([one["value"] for one in view["data"]])
    errors, colours = _errors([one.get("error") for one in view["data"]]), colours_of(names)
    places, each = np.arange(len(names)), [colours[n] for n in names]
    dots = view.get("style") == "dots"
    if dots:
        axes.scatter(places, values, s=60, color=each, zorder=3)
    else:
        axes.bar(places, values, 0.7, color=each, alpha=0.85)
    for place, one in enumerate(view["data"]):
        if errors[place] > 0:
            ink = each[place] if dots else "black"
            axes.errorbar(place, values[place], errors[place], fmt="none", ecolor=ink, capsize=3)
        points = _floats(one.get("points", []))
        spread = np.linspace(-0.2, 0.2, len(points)) if len(points) > 1 else np.zeros(len(points))
        shift = 0.25 + spread / 2 if dots else spread
        axes.scatter(place + shift, points, s=10, color="white", edgecolor="black", linewidth=0.6, zorder=3)
        if one.get("reference") is not None:
            axes.plot([place - 0.42, place + 0.42], [one["reference"]] * 2, color="black", linewidth=1.6, zorder=2)
    if view.get("reference_name") and any(one.get("reference") is not None for one in view["data"]):
        from matplotlib.lines import Line2D

        handle = Line2D([], [], color="black", linewidth=1.6, label=view["reference_name"])
        axes.legend(handles=[handle], frameon=False, fontsize=8)
    axes.set_xticks(places, names, rotation=30, ha="right", fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)


def _one_style(views: Sequence[View]) -> list[View]:
    """Replace bars by dots if a view asks for dots, or if values are so similar that bars would hide differences. All
    charts of a measure have one style, since they are compared.
    """
    bars = [view for view in views if view["kind"] == "bars"]
    dotted = {view["x"] for view in bars if view.get("style") == "dots" or _alike(view["data"])}
    return [{**v, "style": "dots"} if v["kind"] == "bars" and v["x"] in dotted else v for v in views]


def _alike(data: Sequence[dict[str, Any]]) -> bool:
    """True if all values lie on one side of 0, further from it than from each other."""
    seen = [v for one in data for v in (one["value"], one.get("reference"), *one.get("points", [])) if v is not None]
    if not seen or min(seen) * max(seen) <= 0:
        return False
    return min(map(abs, seen)) > 0.5 * max(map(abs, seen))


def _images(figure: Figure, view: View) -> None:
    from matplotlib.image import imread

    across = view.get("across", 1)
    grid = figure.subplots(-(-len(view["data"]) // across), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for one, axes in zip(view["data"], grid.flat, strict=False):
        axes.imshow(imread(io.BytesIO(base64.b64decode(one["src"].partition(",")[2]))), interpolation="nearest")
        axes.set_title(one.get("caption", ""), fontsize=7)


def _table(figure: Figure, view: View) -> None:
    axes, digits = figure.subplots(), view.get("digits", 2)
    axes.set_axis_off()
    shown = [
        ["-" if v is None else f"{v:.{digits}f}" if type(v) is float else str(v) for v in row] for row in view["data"]
    ]
    if shown:
        axes.table(cellText=shown, colLabels=view["columns"], loc="center", edges="horizontal").scale(1, 1.3)


_KINDS: dict[str, Callable[[Any, View], None]] = {
    "lines": _lines,
    "scatter": _scatter,
    "heatmap": _heatmap,
    "bars": _bars,
    "images": _images,
    "table": _table,
}
