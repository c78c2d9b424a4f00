"""A bench as tables for the terminal, as Markdown for the README, and as a picture.

The picture shows for each benchmark the three sweeps with their floors, and the ratio to plain code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kenyon.bench.result import SECOND, BenchResult, Piece, Record, Sweep
from kenyon.report.figures import COLOURS, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIECES: dict[Piece, str] = {"step": "training step", "importance": "importance pass", "evaluation": "evaluation"}
AXES: dict[Sweep, str] = {"runs": "runs", "learners": "learners", "tasks": "task"}
EXPLAINED: dict[Sweep, str] = {
    "runs": "scaling over runs at once",
    "learners": "scaling over learners, always with about as many parameters in all",
    "tasks": f"scaling over tasks: their cost must stay flat (ratio to task {SECOND})",
}


def speed_tables(result: BenchResult) -> list[Group]:
    """Return tables of at most 80 columns, each under its title."""
    tables = []
    for benchmark in result.benchmarks:
        if any("pieces" in r.sweeps for r in result.records if r.benchmark == benchmark):
            tables.append(_pieces(result, benchmark))
        swept = {r for record in result.records if record.benchmark == benchmark for r in record.sweeps}
        tables.extend(_sweep(result, benchmark, sweep) for sweep in AXES if sweep in swept)
    return tables


def _pieces(result: BenchResult, benchmark: str) -> Group:
    records = [r for method in result.methods for r in result.sweep("pieces", benchmark, method)]
    table = _table(
        "ms: all runs together, median ± half the quartiles' distance. of floor: the least time that operations "
        f"(o) or bytes (b) allow on this device, in per cent of that measured. MiB: {result.memory}, at most. plain: "
        "the same in ordinary PyTorch, one run in float32. faster: its time for all runs over ours"
        + (f"; equal: with {result.precision} in both." if _both(result) else ".")
    )
    head = ["method", "piece", "ms", "±", "ms\nper run", "images\n/s", "of\nfloor", "MiB", "plain\nms"]
    for name in [*head, "times\nfaster", *(["\nequal"] if _both(result) else [])]:
        table.add_column(name, justify="left" if name in ("method", "piece") else "right", no_wrap=True)
    for r in records:
        table.add_row(r.method, r.piece, number(r.ms.median), _spread(r), *_cells(result, r))
    runs = _count(records[0].runs, "run")
    title = f"{benchmark}: {runs} at once, task {records[0].task}, {result.precision}, {where(result)}"
    return Group(Text(title, "bold"), table)


def _cells(result: BenchResult, r: Record) -> list[str]:
    cells = [number(r.ms_per_run), f"{r.images_per_s:,.0f}", f"{percent(r.share)} {r.bound[0]}"]
    cells.append("-" if r.memory_mib is None else f"{r.memory_mib:,.0f}")
    plainly = r.against[0] if r.against else None
    cells += ["-", "-"] if plainly is None else [number(plainly.ms.median), number(plainly.ratio.median)]
    if _both(result):
        cells.append(number(r.against[-1].ratio.median) if r.against else "-")
    return cells


def _both(result: BenchResult) -> bool:
    """True if the plain reference was measured in float32 and also in the library's precision."""
    return any(len(r.against) > 1 for r in result.records)


def _sweep(result: BenchResult, benchmark: str, sweep: Sweep) -> Group:
    """A table of training steps (and by task also importance passes), two columns per method."""
    table = _table()
    table.add_column(AXES[sweep], justify="right")
    shown: list[dict[int, Record]] = []
    for piece in get_args(Piece):
        for method in result.methods:
            if records := result.sweep(sweep, benchmark, method, piece):
                shown.append({axis_value(r, sweep): r for r in records})
                table.add_column(f"{method}\n{piece}\nms", justify="right", no_wrap=True)
                second = {"runs": "per run", "learners": "of floor", "tasks": "ratio"}[sweep]
                table.add_column(f"\n\n{second}", justify="right", no_wrap=True)
    for value in sorted(set().union(*shown)):
        cells = []
        for column in shown:
            r = column.get(value)
            cells += ["-", "-"] if r is None else [number(r.ms.median), _second_column(r, sweep, column)]
        table.add_row(str(value), *cells)
    return Group(Text(f"{benchmark}: {EXPLAINED[sweep]}", "bold"), table)


def _second_column(r: Record, sweep: Sweep, column: dict[int, Record]) -> str:
    if sweep == "runs":
        return number(r.ms_per_run)
    if sweep == "learners":
        return percent(r.share)
    return f"{r.ms.median / column[SECOND].ms.median:.2f}" if SECOND in column else "-"


def axis_value(r: Record, sweep: Sweep) -> int:
    return r.task if sweep == "tasks" else r.runs if sweep == "runs" else r.learners


def speed_markdown(result: BenchResult) -> str:
    """Return the tables of the README: the pieces of work, and the sweeps."""
    lines = [f"**{where(result)}**, {result.precision} learners, PyTorch {result.versions['torch']}"]
    if result.ceilings is not None:
        bandwidth, rate = result.ceilings.bytes_per_s / 1e9, result.ceilings.operations_per_s / 1e9
        lines[0] += f"; at best {bandwidth:,.0f} GB/s and {rate:,.0f} GFLOP/s, as measured"
    head = ["benchmark", "method", "piece", "runs", "ms", "ms per run", "images/s", "of floor", "MiB", "plain ms"]
    head += ["times faster", *(["same precision"] if _both(result) else [])]
    lines += ["", _line(head), "|---|---|---" + "|---:" * (len(head) - 3) + "|"]
    for benchmark in result.benchmarks:
        for method in result.methods:
            for r in result.sweep("pieces", benchmark, method):
                first = [benchmark, f"`{method}`", PIECES[r.piece], str(r.runs), number(r.ms.median)]
                lines.append(_line([*first, *_cells(result, r)]))
    lines += ["", _line(["ms a training step, per run", *(f"`{m}`" for m in result.methods)])]
    lines.append("|---" * (1 + len(result.methods)) + "|")
    for benchmark in result.benchmarks:
        for sweep, axis in AXES.items():
            found = [result.sweep(sweep, benchmark, method, "step") for method in result.methods]
            values = sorted({axis_value(r, sweep) for records in found for r in records})
            rows = [" · ".join(number(r.ms_per_run) for r in records) or "-" for records in found]
            if values:
                lines.append(_line([f"{benchmark}, {axis} {', '.join(map(str, values))}", *rows]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def where(result: BenchResult) -> str:
    return result.device if result.kind == "cuda" else f"{result.device}, {_count(result.threads, 'thread')}"


def number(value: float) -> str:
    """A number with three digits."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}" if value >= 0.01 else f"{value:.2g}"


def percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _spread(r: Record) -> str:
    return f"{50 * (r.ms.high - r.ms.low) / r.ms.median:.0f}%"


def _table(caption: str | None = None) -> Table:
    return Table(caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


TITLES: dict[Sweep, str] = {"runs": "runs at once", "learners": "learners of a run", "tasks": "task being learned"}


def draw_speed(result: BenchResult, path: Path) -> Path:
    """Draw a row per benchmark: milliseconds per step and run with dashed floors, and the ratio to plain PyTorch."""
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
            _draw_sweep(axes, result, benchmark, sweep)
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


def _draw_sweep(axes: Axes, result: BenchResult, benchmark: str, sweep: Sweep) -> None:
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
