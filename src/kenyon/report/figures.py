"""Text that can be read on a colour.

A figure onto the disk.

Results as pictures.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result
from kenyon.methods.registry import colors
from kenyon.metrics import average_curve
from kenyon.utils.files import write_atomically
from kenyon.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BRIGHTNESS = (0.3, 0.6, 0.1)  # what red, green and blue add to it, about


def text_on(colour: Any, pale: float = 0.5) -> str:
    """Black on a colour that is brighter than `pale`, of 0 to 1, and white on others."""
    from matplotlib.colors import to_rgb

    return "black" if np.dot(to_rgb(colour), BRIGHTNESS) > pale else "white"


def save_figure(
    figure: Figure,
    path: Path,
    suffixes: Sequence[str] = (".svg",),
    *,
    kept: str = "The numbers themselves are saved.",
) -> Path:
    """As the path's suffix says (png, pdf, svg), and with these beside it; the figure is closed either way. Each is
    there whole or not at all.

    `kept`: what an error says is not lost with the picture.
    """
    from matplotlib import pyplot as plt

    try:
        for suffix in dict.fromkeys((path.suffix, *suffixes)):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix.removeprefix(".") or None, dpi=150)
            write_atomically(path.with_suffix(suffix), drawn.getvalue())
    except (ResultsError, ValueError) as error:  # ValueError: a suffix that is no format
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. {kept}") from error
    finally:
        plt.close(figure)
    return path


COLOURS = colors()  # of the built-in methods
FULL = 100.5  # per cent, and room for the line
NAME = 34  # characters of a line of a name
MANY = 8  # points of a method in one picture; of more, those with the best average accuracy
SPARE = ("#d57dbe", "#b2b347", "#3f8f8a", "#a3683f")


def draw_results(results: Mapping[str, Result], path: Path) -> Path:
    """Left: average accuracy of the tasks seen so far. Right: in the end, with every run as a point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn = _drawn(results)
    colours = _colours(drawn)
    lying = any(r.point for r in drawn.values())  # long names: they stand beside bars, in place of a legend
    small = lying or len(drawn) > 7
    size = (10, max(4.2, 1.2 + 0.3 * len(drawn))) if lying else (10 + 0.4 * max(0, len(drawn) - 8), 4.2)
    figure, (left, right) = plt.subplots(1, 2, figsize=size, width_ratios=(1.5, 1), layout="constrained")
    first = next(iter(results.values()))
    title = f"{first.benchmark}, {counted(first.config['tasks'], 'task')}, {counted(len(first.runs), 'run')}"
    left_out = sum(r.method != "random-init" and bool(r.complete_runs) for r in results.values()) > len(drawn)
    figure.suptitle(title + (f"; the best {MANY} points a method" if left_out else ""), fontsize=12)
    for number, (name, result) in enumerate(drawn.items()):
        _curve(left, name, result, colours[name])
        _bar(right, number, result, colours[name], small=small, lying=lying)
    left.set(xlabel="tasks learned", ylabel="average accuracy of tasks so far (%)")
    left.xaxis.get_major_locator().set_params(integer=True)
    if first.config["tasks"] == 1:
        left.set_xticks([1])
    if drawn and not lying:
        left.legend(frameon=False, fontsize=7 if small else 9, ncols=1 if len(drawn) <= 10 else 2)
    low = min((run.matrix[-1].mean() for r in drawn.values() for run in r.complete_runs), default=0.0)
    bottom = max(0.0, 10 * np.floor((low - 5) / 10))
    told = "average accuracy in the end (%)"
    if lying:
        right.set(xlabel=told, xlim=(bottom, min(FULL, right.get_xlim()[1])))
        names = [textwrap.fill(name.replace(",", ", "), NAME) for name in drawn]
        right.set_yticks(range(len(drawn)), names, fontsize=7)
        right.invert_yaxis()
    else:
        right.set(ylabel=told, ylim=(bottom, min(FULL, right.get_ylim()[1])))
        right.set_xticks(range(len(drawn)), [*drawn], rotation=30, ha="right", fontsize=7 if small else None)
    left.set_ylim(top=min(FULL, left.get_ylim()[1]))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x" if lying and axes is right else "y", alpha=0.25)
        axes.set_axisbelow(True)
    return save_figure(figure, path, kept="The results themselves are saved.")


def _drawn(results: Mapping[str, Result]) -> dict[str, Result]:
    there = {name: r for name, r in results.items() if r.complete_runs and r.method != "random-init"}
    shown: set[str] = set()
    for method in {r.method for r in there.values()}:
        points = {name: r.aac.mean for name, r in there.items() if r.method == method and r.aac}
        shown |= set(sorted(points, key=lambda name: points[name], reverse=True)[:MANY])
    return {name: r for name, r in there.items() if name in shown}


def _colours(results: Mapping[str, Result]) -> dict[str, Any]:
    """A colour a method; its points from that colour to a light one."""
    from matplotlib.colors import to_rgb

    colours: dict[str, Any] = {}
    for number, method in enumerate(dict.fromkeys(r.method for r in results.values())):
        base = np.array(to_rgb(COLOURS.get(method, SPARE[number % len(SPARE)])))
        labels = [name for name, r in results.items() if r.method == method]
        for name, light in zip(labels, np.linspace(0, 0.5, len(labels)), strict=True):
            colours[name] = tuple(base + light * (1 - base))
    return colours


def _curve(axes: Axes, name: str, result: Result, colour: Any) -> None:
    matrices = result.accuracy
    if len(matrices[0]) == 1 < result.config["tasks"]:  # joint training: one number, for all tasks at once
        axes.axhline(matrices.mean(), color=colour, linestyle="--", linewidth=1, label=name)
        return
    curves = np.array([average_curve(matrix) for matrix in matrices])
    mean, tasks = curves.mean(0), np.arange(1, curves.shape[1] + 1)
    axes.plot(tasks, mean, color=colour, label=name, marker="o", markersize=3.5)
    if len(curves) > 1:
        sem = curves.std(0, ddof=1) / np.sqrt(len(curves))
        axes.fill_between(tasks, mean - sem, mean + sem, color=colour, alpha=0.18, linewidth=0)


def _bar(axes: Axes, place: int, result: Result, colour: Any, *, small: bool, lying: bool) -> None:
    aac = result.aac
    assert aac is not None
    error: Any = aac.sem if len(aac.runs) > 1 else None
    places = place + (np.linspace(-0.18, 0.18, len(aac.runs)) if len(aac.runs) > 1 else np.zeros(1))
    points: Any = {"s": 12, "color": "white", "edgecolor": "black", "linewidth": 0.6, "zorder": 3, "clip_on": False}
    text: Any = {"color": text_on(colour, pale=0.6), "fontsize": 7 if small else None}
    if lying:
        axes.barh(place, aac.mean, xerr=error, color=colour, height=0.65, capsize=3, alpha=0.85)
        axes.scatter(aac.runs, places, **points)
        beside: Any = ("axes fraction", "data")
        axes.annotate(f"{aac.mean:.1f}", (0.02, place), xycoords=beside, va="center", **text)
    else:
        axes.bar(place, aac.mean, yerr=error, color=colour, width=0.65, capsize=4, alpha=0.85)
        axes.scatter(places, aac.runs, **points)
        below: Any = ("data", "axes fraction")
        axes.annotate(f"{aac.mean:.1f}", (place, 0.02), xycoords=below, ha="center", **text)
