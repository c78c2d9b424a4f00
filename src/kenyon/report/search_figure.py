"""A search as a picture: a line for one setting that varies, a map for two, several maps for three.

Points that are no grid, and more settings, are drawn as a panel a setting.
"""

from __future__ import annotations

from math import ceil, isfinite, prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kenyon.experiments import Found, Score
from kenyon.experiments.results import value_text
from kenyon.metrics import Array
from kenyon.report.figures import COLOURS, SPARE, save_figure
from kenyon.utils.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCORE = "AAC on held-out data (%)"


def draw_search(found: Found, path: Path) -> Path:
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
    """Those tried of a setting, numbers in rising order and words as they came."""
    tried = list({value_text(score.settings[name]): score.settings[name] for score in found.scores}.values())
    return tried if any(isinstance(value, str) for value in tried) else sorted(tried)


def _colour(method: str) -> str:
    return COLOURS.get(method, SPARE[0])


def _short(value: Any) -> str:
    """As `value_text`, but 1e-08, 0.0001 and 25000 as 1e-8, 1e-4 and 2.5e4."""
    if isinstance(value, (bool, str)) or value == 0 or 1e-3 <= abs(value) < 1e4:
        return value_text(value)
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


# ---------------------------------------------------------------------- maps


def _maps(found: Found, values: dict[str, list[Any]]) -> Figure:
    """The first setting upwards, the second to the right, a map for every value of the third."""
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
    light = 1 - 0.08 * (1 - full)  # not the white of the paper
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
    """Shades end at the best, and begin where a few bad points do not take the differences among the good."""
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
    """Scores over each setting, whatever the others are; `joined`: there are no others, and a line leads through."""
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
    numbers = not any(isinstance(value, (bool, str)) for value in tried)

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
