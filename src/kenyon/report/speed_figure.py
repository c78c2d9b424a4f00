"""A bench as a picture: for each benchmark the three sweeps with their floors, and the ratio to plain code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from kenyon.bench import BenchResult
from kenyon.bench.plan import Sweep
from kenyon.bench.subject import Piece
from kenyon.report.figures import COLOURS
from kenyon.report.saving import save_figure
from kenyon.report.speed import AXES, PIECES, axis_value, where

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES: dict[Sweep, str] = {"runs": "runs at once", "learners": "learners of a run", "tasks": "task being learned"}


def draw_speed(result: BenchResult, path: Path) -> Path:
    """One row a benchmark. Left: milliseconds a step and run, floors dashed. Right: times faster than plain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    rows = result.benchmarks
    size = (13.5, 1.2 + 3.1 * len(rows))
    figure, grid = plt.subplots(
        len(rows), 4, figsize=size, squeeze=False, layout="constrained", width_ratios=(1, 1, 1, 1.15)
    )
    figure.suptitle(f"Training step on {where(result)}, {result.precision}", fontsize=12)
    for benchmark, (*sweeps, last) in zip(rows, grid, strict=True):
        for sweep, axes in zip(AXES, sweeps, strict=True):
            _sweep(axes, result, benchmark, sweep)
        _same_height(sweeps)
        sweeps[0].set_ylabel(f"{benchmark}\nms a step and run")
        _ratios(last, result, benchmark)
    for axes, title in zip(grid[0], [*TITLES.values(), "times faster than plain PyTorch"], strict=True):
        axes.set_title(title, fontsize=10)
    legend = [Line2D([], [], color=COLOURS[m], marker="o", markersize=4, label=m) for m in result.methods]
    legend.append(Line2D([], [], color="#555555", linestyle="--", linewidth=1, label="floor: bytes or operations"))
    if any(len(r.against) > 1 for r in result.records):
        legend.append(
            Line2D(
                [], [], color="black", marker="D", markersize=4, linestyle="", label=f"plain in {result.precision}"
            )
        )
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False, fontsize=9)
    return save_figure(figure, path)


def _sweep(axes: Axes, result: BenchResult, benchmark: str, sweep: Sweep) -> None:
    from matplotlib.ticker import LogLocator

    ticks: set[int] = set()
    for method in result.methods:
        records = result.sweep(sweep, benchmark, method, "step")
        if not records:
            continue
        x = [axis_value(r, sweep) for r in records]
        ticks.update(x)
        y = np.array([r.ms_per_run for r in records])
        around = np.array([[r.ms.median - r.ms.low, r.ms.high - r.ms.median] for r in records]).T
        axes.errorbar(
            x,
            y,
            around / [r.runs for r in records],
            color=COLOURS[method],
            marker="o",
            markersize=4,
            capsize=2,
            elinewidth=0.8,
        )
        floor = [r.floor_ms / r.runs for r in records]
        axes.plot(x, floor, color=COLOURS[method], linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sorted(ticks), [str(t) for t in sorted(ticks)])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


def _same_height(several: list[Axes]) -> None:
    limits = [axes.get_ylim() for axes in several if axes.lines]
    for axes in several if limits else ():
        axes.set_ylim(min(low for low, _ in limits) / 1.2, max(high for _, high in limits) * 1.2)


def _ratios(axes: Axes, result: BenchResult, benchmark: str) -> None:
    pieces, width = get_args(Piece), 0.8 / max(1, len(result.methods))
    for row, method in enumerate(result.methods):
        for r in result.sweep("pieces", benchmark, method):
            place = pieces.index(r.piece) + (row - (len(result.methods) - 1) / 2) * width
            for against in r.against:
                ratio = against.ratio
                if against.precision != "float32":
                    axes.plot(place, ratio.median, color="black", marker="D", markersize=4)
                    continue
                spread = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
                axes.bar(place, ratio.median, width * 0.92, yerr=spread, color=COLOURS[method], alpha=0.85, capsize=2)
                axes.annotate(
                    f"{ratio.median:.{1 if ratio.median < 10 else 0}f}×",
                    (place, ratio.high),
                    xytext=(0, 3),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
    axes.axhline(1, color="#555555", linewidth=0.8)
    axes.set_xticks(range(len(pieces)), [PIECES[piece].replace(" ", "\n") for piece in pieces])
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)
