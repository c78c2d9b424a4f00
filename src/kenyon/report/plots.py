"""Pictures of plots that are given as plain data (see kenyon.analysis.plot and docs/analysis.md)."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.errors import ConfigError, ResultsError
from kenyon.report.figures import COLOURS, SPARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plot = Mapping[str, Any]
PLAIN = ("#3b75af", "#c53a32", "#519e3e", "#e8a33d", "#8d69b8", "#84584e")  # of series that are not methods


def draw_plot(plot: Plot, path: Path) -> Path:
    """Draw a plot as `path`, a PNG, and the same as SVG beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    if plot["kind"] not in _KINDS:
        raise ConfigError(f"A plot of kind '{plot['kind']}' cannot be drawn; there are {', '.join(_KINDS)}.")
    figure = plt.figure(figsize=_size(plot), layout="constrained")
    _KINDS[plot["kind"]](figure, plot)
    figure.suptitle(plot["title"], fontsize=11)
    if plot.get("note"):
        figure.supxlabel(plot["note"], fontsize=8, color="#555555")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        figure.savefig(path.with_suffix(".svg"))
    except OSError as error:
        raise ResultsError(f"Cannot write {path}: {error.strerror}. The numbers themselves are saved.") from error
    finally:
        plt.close(figure)
    return path


def _size(plot: Plot) -> tuple[float, float]:
    if plot["kind"] in ("heatmap", "images"):
        rows, columns = len(plot["rows"]), len(plot["columns"])
        if plot["kind"] == "images":
            return max(4.0, 1.6 + 1.15 * columns), 1.0 + 1.15 * rows
        return min(12.0, max(5.0, 2.6 + 0.5 * columns)), min(10.0, max(2.8, 1.8 + 0.42 * rows))
    if plot["kind"] == "table":
        return 1.6 * len(plot["columns"]), 1.2 + 0.3 * len(plot["rows"])
    if plot["kind"] == "bars":
        return max(5.0, 2.0 + 0.9 * len(plot["categories"])), 4.0
    return 7.0, 4.2


def _colours(names: list[str]) -> dict[str, str]:
    """Methods have theirs, points of one method further ones; whatever else there is, a plain set."""
    taken: set[str] = set()
    spare, other = iter(SPARE * len(names)), iter(PLAIN * len(names))
    found = {}
    for name in names:
        method = name.partition("[")[0]
        known = COLOURS.get(method)
        if known is not None and known not in taken:
            found[name] = known
        else:
            found[name] = next(other if known is None else spare)
        taken.add(found[name])
    return found


def _floats(values: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _axes(figure: Figure, plot: Plot) -> Axes:
    axes = figure.add_subplot()
    axes.set(xlabel=plot.get("x", ""), ylabel=plot.get("y", ""))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _lines(figure: Figure, plot: Plot) -> None:
    from matplotlib.ticker import MaxNLocator

    axes = _axes(figure, plot)
    bold = [s for s in plot["series"] if not s.get("thin")]
    colours = _colours([s["name"] for s in bold])
    for series in plot["series"]:
        x, y = _floats(series["x"]), _floats(series["y"])
        if series.get("thin"):
            axes.plot(x, y, color="#8c8c8c", alpha=0.6, linewidth=0.9)
            continue
        colour = colours[series["name"]]
        few = len(x) <= 25
        axes.plot(x, y, color=colour, label=series["name"], marker="o" if few else None, markersize=3.5)
        if "error" in series:
            error = _floats(series["error"])
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
    if all(float(v).is_integer() for s in plot["series"] for v in s["x"]):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(plot["series"]) > 1:
        axes.legend(frameon=False, fontsize=9)


def _scatter(figure: Figure, plot: Plot) -> None:
    axes = _axes(figure, plot)
    colours = _colours([s["name"] for s in plot["series"]])
    for series in plot["series"]:
        axes.scatter(
            _floats(series["x"]),
            _floats(series["y"]),
            s=42,
            color=colours[series["name"]],
            edgecolor="black",
            linewidth=0.6,
            label=series["name"],
        )
    axes.margins(0.08)
    axes.legend(frameon=False, fontsize=9)


def _heatmap(figure: Figure, plot: Plot) -> None:
    axes = figure.add_subplot()
    values = np.array([_floats(row) for row in plot["values"]])
    there = values[np.isfinite(values)]
    limits: dict[str, Any] = {"cmap": "viridis"}
    if "centre" in plot:
        far = float(np.abs(there - plot["centre"]).max(initial=1e-9))
        limits = {"cmap": "RdBu_r", "vmin": plot["centre"] - far, "vmax": plot["centre"] + far}
    picture = axes.imshow(values, aspect="auto", **limits)
    axes.set(xlabel=plot["x"], ylabel=plot["y"])
    axes.set_xticks(range(len(plot["columns"])), plot["columns"])
    axes.set_yticks(range(len(plot["rows"])), plot["rows"])
    figure.colorbar(picture, ax=axes, label=plot["unit"])
    if values.size > 150:
        return
    for row, column in np.ndindex(values.shape):
        if np.isfinite(values[row, column]):
            red, green, blue, _ = picture.cmap(picture.norm(values[row, column]))
            dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
            text = f"{values[row, column]:.1f}" if "centre" in plot else f"{values[row, column]:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def _bars(figure: Figure, plot: Plot) -> None:
    axes = _axes(figure, plot)
    series, categories = plot["series"], plot["categories"]
    alone = len(series) == 1
    by_category, by_series = _colours(categories), _colours([s["name"] for s in series])
    width = 0.7 / len(series)
    for number, one in enumerate(series):
        places = np.arange(len(categories)) + (number - (len(series) - 1) / 2) * width
        colours = [by_category[c] if alone else by_series[one["name"]] for c in categories]
        error = _floats(one["error"]) if "error" in one else None
        error = None if error is None or np.isnan(error).all() else np.nan_to_num(error)
        axes.bar(places, _floats(one["values"]), width * 0.92, yerr=error, color=colours, capsize=3, alpha=0.85)
        for place, points in zip(places, one.get("points", []), strict=False):
            spread = np.linspace(-0.25, 0.25, len(points)) * width if len(points) > 1 else np.zeros(1)
            axes.scatter(place + spread, points, s=12, color="white", edgecolor="black", linewidth=0.6, zorder=3)
    if not alone:
        from matplotlib.patches import Patch

        axes.legend(handles=[Patch(color=by_series[s["name"]], label=s["name"]) for s in series], frameon=False)
    axes.set_xticks(range(len(categories)), categories, rotation=30, ha="right")


def _images(figure: Figure, plot: Plot) -> None:
    from matplotlib.image import imread

    grid = figure.subplots(len(plot["rows"]), len(plot["columns"]), squeeze=False)
    for name, cells, across in zip(plot["rows"], plot["cells"], grid, strict=True):
        for cell, axes in zip(cells, across, strict=True):
            axes.imshow(imread(io.BytesIO(base64.b64decode(cell))), interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        across[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    for name, axes in zip(plot["columns"], grid[0], strict=True):
        axes.set_title(name, fontsize=8)


def _table(figure: Figure, plot: Plot) -> None:
    axes = figure.add_subplot()
    axes.set_axis_off()
    shown = [
        ["-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in plot["rows"]
    ]
    axes.table(cellText=shown, colLabels=plot["columns"], loc="center", edges="horizontal").scale(1, 1.3)


_KINDS: dict[str, Callable[[Figure, Plot], None]] = {
    "lines": _lines,
    "scatter": _scatter,
    "heatmap": _heatmap,
    "bars": _bars,
    "images": _images,
    "table": _table,
}
