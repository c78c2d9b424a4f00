"""Results as tables for the terminal and as plain values for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from kenyon.experiments.published import ACCURACY
from kenyon.experiments.results import Result
from kenyon.metrics import Summary


def pm(summary: Summary | None, digits: int = 2) -> str:
    """mean +- standard error, or a dash."""
    if summary is None:
        return "-"
    if len([v for v in summary.runs if v == v]) < 2:
        return f"{summary.mean:.{digits}f}"
    return f"{summary.mean:.{digits}f} ± {summary.sem:.{digits}f}"


def results_table(results: Mapping[str, Result]) -> Table:
    """One row a method; the best average accuracy is bold."""
    first = next(iter(results.values()))
    published = ACCURACY.get(first.benchmark, {}) if _full(results) else {}
    table = Table(
        title=f"{first.benchmark}: {_count(first.config['tasks'], 'task')}, {_count(len(first.runs), 'run')}, "
        "mean ± standard error",
        caption="AAC: accuracy of all tasks in the end; BWT, FWT: backward and forward transfer; "
        "Cos: diversity of the learners' predictions.",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("method", "AAC %", "BWT", "FWT", "Cos", "time"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    if published:
        table.add_column("published %", justify="right")
    finals = {name: r.aac.mean for name, r in results.items() if r.aac and name not in ("joint", "random-init")}
    best = max(finals, key=lambda name: finals[name]) if finals else None
    for name, r in results.items():
        cells = [
            name,
            pm(r.aac),
            pm(r.bwt, 1),
            pm(r.fwt, 1),
            pm(r.cosine, 3),
            duration(r.seconds),
        ]
        if published:
            cells.append(f"{published[name]:.2f}" if name in published else "-")
        table.add_row(*cells, style="bold" if name == best and len(finals) > 1 else None)
    return table


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _full(results: Mapping[str, Result]) -> bool:
    """Published values belong to the whole protocol only."""
    from kenyon.experiments.benchmarks import find_benchmark

    for r in results.values():
        bench = find_benchmark(r.benchmark)
        whole = len(bench.source.class_counts)
        if r.config["tasks"] != whole or r.config["training"]["epochs"] != bench.training.epochs:
            return False
    return True


def results_json(results: Mapping[str, Result], seconds: float, device: str) -> dict[str, Any]:
    first = next(iter(results.values()))
    return {
        "benchmark": first.benchmark,
        "methods": {
            name: r.summary()
            | {"parameters": r.parameters, "diverged": [run.seed for run in r.runs if not run.complete]}
            for name, r in results.items()
        },
        "seconds": round(seconds, 2),
        "device": device,
    }


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes / 60:.1f} h"
