"""Pictures of results and searches, and the colours of methods."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from math import ceil, isfinite, prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.errors import ResultsError
from kenyon.experiments.results import Result, value_text
from kenyon.methods.registry import colors
from kenyon.metrics import Array, average_curve
from kenyon.utils.files import write_atomically
from kenyon.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kenyon.experiments import Found, Score

BRIGHTNESS = (0.3, 0.6, 0.1)  # what red, green and blue add to it, about


def text_on(colour: Any, pale: float = 0.5) -> str:
    """Return black for a color that is brighter than `pale`, from 0 to 1, and white for others."""
    from matplotlib.colors import to_rgb

    return "black" if np.dot(to_rgb(colour), BRIGHTNESS) > pale else "white"


def save_figure(
    figure: Figure,
    path: Path,
    suffixes: Sequence[str] = (".svg",),
    *,
    kept: str = "The numbers themselves are saved.",
) -> Path:
    """Save a figure in the format of the path's suffix (png, pdf, svg) and in `suffixes`, each file atomically.

    The figure is closed, also after an error. `kept`: a sentence of the error on what is not lost.
    """
    from matplotlib import pyplot as plt

    try:
        for suffix in dict.fromkeys((path.suffix, *suffixes)):
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix.removeprefix(".") or None, dpi=150)
            write_atomically(path.with_suffix(suffix), drawn.getvalue())
    except (ResultsError, ValueError) as error:  # ValueError: an unknown format
        reason = getattr(error.__cause__, "strerror", None) or error
        raise ResultsError(f"Cannot write {path}: {reason}. {kept}") from error
    finally:
        plt.close(figure)
    return path


COLOURS = colors()  # of the built-in methods
FULL = 100.5  # per cent, and room for the line
NAME = 34  # characters of a line of a name
MANY = 8  # most grid points of a method in one picture: those with the best average accuracy
SPARE = ("#d57dbe", "#b2b347", "#3f8f8a", "#a3683f")


def draw_results(results: Mapping[str, Result], path: Path) -> Path:
    """Draw average accuracy of the tasks seen so far (left), and in the end with every run as a point (right)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn = _drawn(results)
    colours = _colours(drawn)
    lying = any(r.point for r in drawn.values())  # long names: horizontal bars with names, and no legend
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
    measure = "average accuracy in the end (%)"
    if lying:
        right.set(xlabel=measure, xlim=(bottom, min(FULL, right.get_xlim()[1])))
        names = [textwrap.fill(name.replace(",", ", "), NAME) for name in drawn]
        right.set_yticks(range(len(drawn)), names, fontsize=7)
        right.invert_yaxis()
    else:
        right.set(ylabel=measure, ylim=(bottom, min(FULL, right.get_ylim()[1])))
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
    """Colors by label: one per method, its grid points from that color to a light one."""
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
        inside: Any = ("axes fraction", "data")
        axes.annotate(f"{aac.mean:.1f}", (0.02, place), xycoords=inside, va="center", **text)
    else:
        axes.bar(place, aac.mean, yerr=error, color=colour, width=0.65, capsize=4, alpha=0.85)
        axes.scatter(places, aac.runs, **points)
        below: Any = ("data", "axes fraction")
        axes.annotate(f"{aac.mean:.1f}", (place, 0.02), xycoords=below, ha="center", **text)


SCORE = "AAC on held-out data (%)"


def draw_search(found: Found, path: Path) -> Path:
    """Draw a search: a line for one setting that varies, a map for two, several maps for three.

    Points that are no grid, and more settings, are drawn as a panel per setting.
    """
    import matplotlib

    matplotlib.use("Agg")

    values = {name: _values(found, name) for name in found.scores[0].settings}
    is_grid = prod(map(len, values.values())) == len(found.scores)
    if is_grid and 2 <= len(values) <= 3:
        figure = _maps(found, values)
    else:
        figure = _panels(found, list(values), joined=is_grid and len(values) == 1)
    folds = counted(len(found.seeds), "fold")
    title = f"{found.method} on {found.benchmark}, {found.protocol.name} search ({found.tasks} tasks, {folds})"
    figure.suptitle(title, fontsize=11)
    return save_figure(figure, path, kept="The choice itself is saved.")


def _values(found: Found, name: str) -> list[Any]:
    """The values of a setting: numbers in ascending order, words in the order of the search."""
    tried = list({value_text(score.settings[name]): score.settings[name] for score in found.scores}.values())
    return tried if str in map(type, tried) else sorted(tried)


def _colour(method: str) -> str:
    return COLOURS.get(method, SPARE[0])


def _short(value: Any) -> str:
    """Like `value_text`, but 1e-8, 1e-4 and 2.5e4 for 1e-08, 0.0001 and 25000."""
    if type(value) in (bool, str) or value == 0 or 1e-3 <= abs(value) < 1e4:
        return value_text(value)
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


# ---------------------------------------------------------------------- maps


def _maps(found: Found, values: dict[str, list[Any]]) -> Figure:
    """Draw the first setting upwards, the second to the right, and a map for every value of the third."""
    from matplotlib import pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    rows, columns, *others = values
    third = others[0] if others else None
    panels = [None] if third is None else values[third]
    across = min(len(panels), 3)
    down = ceil(len(panels) / across)
    wide, high = 1.5 + 0.85 * len(values[columns]), 1.3 + 0.62 * len(values[rows])
    size = (max(4.6, across * wide + 1.2), max(2.6, down * high + 0.5))
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    full = np.array(to_rgb(_colour(found.method)))
    light = 1 - 0.08 * (1 - full)  # differs from the background
    shades = LinearSegmentedColormap.from_list("score", np.stack([light, full])).with_extremes(bad="#e4e4e4")
    low, top = _limits(found)
    image: Any = None
    for axes, panel in zip(grid.flat, panels, strict=False):
        inside = [s for s in found.scores if third is None or s.settings[third] == panel]
        image = axes.imshow(
            _matrix(inside, rows, values[rows], columns, values[columns]),
            cmap=shades,
            vmin=low,
            vmax=top,
            origin="lower",
            aspect="auto",
        )
        for score in inside:
            place = values[columns].index(score.settings[columns]), values[rows].index(score.settings[rows])
            _cell(axes, place, score, shade=(score.mean - low) / (top - low), best=score is found.scores[0])
        axes.set_xticks(range(len(values[columns])), map(_short, values[columns]))
        axes.set_yticks(range(len(values[rows])), map(_short, values[rows]))
        axes.set(xlabel=columns, ylabel=rows if axes.get_subplotspec().is_first_col() else None)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if third is not None:
            axes.set_title(f"{third} = {_short(panel)}", fontsize=10)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    clipped = low > min((s.mean for s in found.scores if s.aac), default=low)
    bar = figure.colorbar(image, ax=grid, label=SCORE, extend="min" if clipped else "neither")
    bar.outline.set_visible(False)
    return figure


def _limits(found: Found) -> tuple[float, float]:
    """Limits of the color scale: from the best down to a value at which few bad points do not compress the rest."""
    means = np.array([score.mean for score in found.scores if score.aac])
    top = float(means.max())
    spread = top - float(np.quantile(means, 0.25))
    low = max(float(means.min()), top - 2 * spread) if spread > 0 else float(means.min())
    return (low, top) if top > low else (top - 1, top)


def _matrix(scores: list[Score], rows: str, down: list[Any], columns: str, right: list[Any]) -> Array:
    matrix = np.full((len(down), len(right)), np.nan)
    for score in scores:
        matrix[down.index(score.settings[rows]), right.index(score.settings[columns])] = score.mean
    return matrix


def _cell(axes: Axes, place: tuple[int, int], score: Score, *, shade: float, best: bool) -> None:
    from matplotlib.patches import Rectangle

    x, y = place
    if score.aac is None:
        axes.text(x, y, "not finite", ha="center", va="center", fontsize=7, color="#606060")
        return
    sem = f"\n± {score.aac.sem:.1f}" if isfinite(score.aac.sem) else ""
    colour = "white" if shade > 0.6 else "black"
    axes.text(x, y, f"{score.mean:.1f}{sem}", ha="center", va="center", fontsize=8, color=colour)
    if best:
        axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1.8))


# ---------------------------------------------------------------------- panels


def _panels(found: Found, names: list[str], *, joined: bool) -> Figure:
    """Draw scores over each setting. `joined`: connect the points, as there is only one setting."""
    from matplotlib import pyplot as plt

    across = min(len(names), ceil(sqrt(len(names))) + 1)
    down = ceil(len(names) / across)
    size = (max(5.0, 3.6 * across), 3.4 * down + 0.3)
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, found, name, joined=joined)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel(SCORE)
    return figure


def _panel(axes: Axes, found: Found, name: str, *, joined: bool) -> None:
    colour, tried = _colour(found.method), _values(found, name)
    scores = [score for score in found.scores if score.aac]
    numbers = not {bool, str} & {*map(type, tried)}

    def place(score: Score) -> float:
        value = score.settings[name]
        return float(value) if numbers else tried.index(value)

    scores.sort(key=place)
    x, y = [place(s) for s in scores], [s.mean for s in scores]
    errors: Any = [s.aac.sem if s.aac else np.nan for s in scores] if len(found.seeds) > 1 else None
    line: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "linestyle": "-" if joined else "none"}
    axes.errorbar(x, y, errors, capsize=3, elinewidth=0.8, **line)
    if joined and len(found.seeds) > 1:
        for s in scores:
            assert s.aac is not None
            axes.scatter([place(s)] * len(s.aac.runs), s.aac.runs, s=9, color=colour, alpha=0.35, linewidth=0)
    best = found.scores[0]
    axes.plot(place(best), best.mean, marker="o", markersize=10, color="black", fillstyle="none", markeredgewidth=1.8)
    if numbers and min(tried) > 0 and max(tried) / min(tried) > 5:
        axes.set_xscale("log")
    if not numbers or len(tried) <= 8:
        axes.set_xticks(tried if numbers else range(len(tried)), map(_short, tried))
        axes.xaxis.minorticks_off()
    axes.set_xlabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
