"""Results as tables for the terminal and as plain values for programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kenyon.experiments.published import ACCURACY
from kenyon.experiments.results import Result
from kenyon.metrics import Summary

# What methods are measured against: they see all tasks at once, or none after another.
REFERENCES = ("joint", "joint-af1", "joint-mcl", "joint-caf", "random-init")
BEST = "*: the best point of its method on these seeds."


def pm(summary: Summary | None, digits: int = 2) -> str:
    """mean +- standard error, or a dash."""
    return "-" if summary is None else summary.text(digits)


def best_points(results: Mapping[str, Result]) -> dict[str, str]:
    """Of every method with several points: the label of the one with the best average accuracy."""
    means: dict[str, dict[str, float]] = {}
    for label, r in results.items():
        if r.point and r.aac is not None:
            means.setdefault(r.method, {})[label] = r.aac.mean
    return {method: max(some, key=lambda label: some[label]) for method, some in means.items() if len(some) > 1}


class Label:
    """A point's label in a table: where there is little room beside the numbers, a line a value."""

    NUMBERS = 72  # characters that the other columns take

    def __init__(self, text: str) -> None:
        self.whole, self.lines = Text(text), Text(re.sub(r"(?<=[\[,])", "\n ", text))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        room = options.max_width - self.NUMBERS
        return Measurement.get(console, options, self.whole if len(self.whole) <= room else self.lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.whole if len(self.whole) <= options.max_width else self.lines


def results_table(results: Mapping[str, Result]) -> Table:
    """One row a method, or a point of it; the best average accuracy is bold, every method's best point has a star."""
    starred, grid = set(best_points(results).values()), any(r.point for r in results.values())
    first = next(iter(results.values()))
    published = ACCURACY.get(first.benchmark, {}) if all(map(whole_protocol, results.values())) else {}
    table = Table(
        title=f"{first.benchmark}: {_count(first.config['tasks'], 'task')}, {_count(len(first.runs), 'run')}, "
        "mean ± standard error",
        caption="AAC: accuracy of all tasks in the end; BWT, FWT: backward and forward transfer; "
        "Cos: diversity of the learners' predictions." + (f" {BEST}" if starred else "") + _memories(results),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,  # with narrow columns 80 characters hold all of it
        padding=(0, 0),
        pad_edge=False,
    )
    for name in ("method", "AAC %", "BWT", "FWT", "Cos", "time"):
        left = name == "method"
        table.add_column(name, justify="left" if left else "right", no_wrap=left or not grid)
    if published:
        table.add_column("published", justify="right", no_wrap=not grid)
    finals = {name: r.aac.mean for name, r in results.items() if r.aac and r.method not in REFERENCES}
    best = max(finals, key=lambda name: finals[name]) if finals else None
    for name, r in results.items():
        cells = [
            pm(r.aac),
            pm(r.bwt, 1),
            pm(r.fwt, 1),
            pm(r.cosine),
            duration(r.seconds),
        ]
        if published:
            cells.append(f"{published[r.method]:.2f}" if r.method in published else "-")
        table.add_row(
            Label(f"{name} *" if name in starred else name) if r.point else name,
            *cells,
            style="bold" if name == best and len(finals) > 1 else None,
        )
    return table


def _memories(results: Mapping[str, Result]) -> str:
    """Which of the methods keep old samples, and how many."""
    kept = {name: r.config["hyper"].get("memory") for name, r in results.items()}
    return "".join(f" {name} keeps {n} old samples of every class." for name, n in kept.items() if n)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def whole_protocol(r: Result) -> bool:
    """Published values belong to the whole protocol only."""
    from kenyon.experiments.benchmarks import find_benchmark

    bench = find_benchmark(r.benchmark)
    whole = len(bench.source.class_counts)
    return bool(r.config["tasks"] == whole and r.config["training"]["epochs"] == bench.training.epochs)


def results_json(results: Mapping[str, Result], seconds: float, device: str) -> dict[str, Any]:
    """Points of a grid also say their values, and `best` names every method's best point."""
    first, best = next(iter(results.values())), best_points(results)
    return {
        "benchmark": first.benchmark,
        "methods": {
            name: r.summary()
            | {"parameters": r.parameters, "diverged": [run.seed for run in r.runs if not run.complete]}
            | ({"method": r.method, "point": r.point} if r.point else {})
            for name, r in results.items()
        },
        **({"best": best} if best else {}),
        "seconds": round(seconds, 2),
        "device": device,
    }


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes / 60:.1f} h"
