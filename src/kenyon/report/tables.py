"""Tables that narrow terminals hold too.

Results as tables for the terminal and as plain values for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kenyon.experiments.published import published_for
from kenyon.experiments.results import Result, ResultBase
from kenyon.metrics import Summary
from kenyon.utils.text import counted


class FittingTable(Table):
    """A table that leaves out columns, and says which, where they would leave no room for the names of its rows."""

    LEAST_FIRST = ("time", "runs", "Cos", "FWT", "BWT", "published")
    NAME = 12  # characters a name may ask for; a longer one goes on in the next line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, left_out = copy(self), []
        for title in self.LEAST_FIRST:
            if self._least_width(shown, console, options) <= options.max_width:
                break
            if any(column.header == title for column in shown.columns):
                shown.columns = [column for column in shown.columns if column.header != title]
                left_out.append(title)
        if left_out:
            unseen = f"Left out, for want of room: {', '.join(left_out)}."
            shown.caption = f"{self.caption} {unseen}" if self.caption else unseen
        yield from Table.__rich_console__(shown, console, options)

    def _least_width(self, table: Table, console: Console, options: ConsoleOptions) -> int:
        wide = options.update(max_width=10_000)
        first, *others = (
            max(Measurement.get(console, wide, cell).maximum for cell in (column.header, *column.cells))
            for column in table.columns
        )
        return min(first, self.NAME) + sum(others) + len(others) + 2  # spaces between them and at both edges


class Label:
    """A point's name in a table: where there is little room beside the numbers, a line a value."""

    def __init__(self, text: str, beside: int) -> None:
        self.whole, self.lines, self.beside = Text(text), Text(text.replace(",", ",\n ")), beside

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        room = options.max_width - self.beside
        return Measurement.get(console, options, self.whole if len(self.whole) <= room else self.lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.whole if len(self.whole) <= options.max_width else self.lines


# What methods are measured against: they see all tasks at once, or none after another.
REFERENCES = ("joint", "joint-af1", "joint-mcl", "joint-caf", "random-init")
BEST = "*: the best point of its method on these seeds, by what it was tested on; `kenyon search` chooses without."
HELD_OUT = "Runs of a search: accuracies of held-out training data, to choose settings by. They are no test results."
MEANINGS = {
    "AAC %": "AAC: accuracy of all tasks in the end.",
    "BWT": "BWT: backward transfer.",
    "FWT": "FWT: forward transfer.",
    "Cos": "Cos: diversity of the learners' predictions.",
}


def pm(summary: Summary | None, digits: int = 2) -> str:
    """mean +- standard error, or a dash."""
    return "-" if summary is None else summary.text(digits)


def best_points(results: Mapping[str, Result]) -> dict[str, str]:
    """Of every method with several points on the same seeds: the label of the one with the best average accuracy."""
    means: dict[str, dict[str, float]] = {}
    seeds: dict[str, set[frozenset[int]]] = {}
    for label, r in results.items():
        if r.point and r.aac is not None:
            means.setdefault(r.method, {})[label] = r.aac.mean
            seeds.setdefault(r.method, set()).add(frozenset(run.seed for run in r.runs))
    comparable = {method: some for method, some in means.items() if len(some) > 1 and len(seeds[method]) == 1}
    return {method: max(some, key=lambda label: some[label]) for method, some in comparable.items()}


def results_tables(results: Mapping[str, Result]) -> list[Table]:
    """The methods of one benchmark, and below them the points of each method's grid."""
    own = {label: r for label, r in results.items() if not r.point}
    points: dict[str, dict[str, Result]] = {}
    for label, r in results.items():
        if r.point:
            points.setdefault(r.method, {})[label] = r
    tables = [results_table(own)] if own else []
    for method, some in points.items():
        tables.append(points_table(method, some, explained=not tables))
    return tables


def results_table(results: Mapping[str, Result]) -> Table:
    """One row a method; the best average accuracy is bold. What nothing was measured of has no column."""
    first = next(iter(results.values()))
    columns = _measured(results)
    columns["time"] = {name: duration(r.seconds) for name, r in results.items()}
    published = {name: published_for(r) for name, r in results.items()}
    if any(value is not None for value in published.values()):
        columns["published"] = {name: "-" if value is None else f"{value:.2f}" for name, value in published.items()}
    usual, others = _run_counts(results)
    table = _table(
        f"{first.title}: {counted(first.config['tasks'], 'task')}, {counted(usual, 'run')}, mean ± standard error",
        " ".join(
            [
                *_held_out(results),
                *_meanings(columns),
                *_fewer(results),
                *others,
                *diverged(results),
                *_memories(results),
            ]
        ),
        ["method", *columns],
    )
    finals = {name: r.aac.mean for name, r in results.items() if r.aac and r.method not in REFERENCES}
    best = max(finals, key=lambda name: finals[name]) if finals else None
    for name in results:
        wins = name == best and len(finals) > 1
        table.add_row(Text(name), *(column[name] for column in columns.values()), style="bold" if wins else None)
    return table


def points_table(method: str, results: Mapping[str, Result], *, explained: bool = True) -> Table:
    """One row a point of a method's grid; the best has a star. `explained`: with what the columns mean."""
    first, starred = next(iter(results.values())), set(best_points(results).values())
    columns = _measured(results)
    columns["runs"] = {name: run_count(r) for name, r in results.items()}
    columns["time"] = {name: rough_duration(r.seconds) for name, r in results.items()}
    table = _table(
        f"{first.title}, {method}: {counted(len(results), 'point')} of a grid",
        " ".join(
            [
                *_held_out(results),
                *(_meanings(columns) if explained else []),
                *_fewer({point_text(method, name): r for name, r in results.items()}),
                *diverged({point_text(method, name): r for name, r in results.items()}),
                *([BEST] if starred else []),
            ]
        ),
        [f"{method} with", *columns],
    )
    beside = sum(max(map(len, [title, *column.values()])) for title, column in columns.items())
    for name in results:
        told = point_text(method, name) + (" *" if name in starred else "")
        table.add_row(Label(told, beside), *(column[name] for column in columns.values()))
    return table


def point_text(method: str, label: str) -> str:
    """What a label says beside the method: its values."""
    return label.removeprefix(method).removeprefix("[").removesuffix("]")


def _measured(results: Mapping[str, Result]) -> dict[str, dict[str, str]]:
    """Column -> label -> text, of what was measured of any."""
    columns = {
        "AAC %": {name: pm(r.aac) for name, r in results.items()},
        "BWT": {name: pm(r.bwt, 1) for name, r in results.items()},
        "FWT": {name: pm(r.fwt, 1) for name, r in results.items()},
        "Cos": {name: pm(r.cosine) for name, r in results.items()},
    }
    return {title: some for title, some in columns.items() if title == "AAC %" or set(some.values()) != {"-"}}


def _meanings(columns: Iterable[str]) -> list[str]:
    return [MEANINGS[name] for name in columns if name in MEANINGS]


def _table(title: str, caption: str, columns: Sequence[str]) -> Table:
    table = FittingTable(
        title=title,
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,  # with narrow columns 80 characters hold all of it
        padding=(0, 0),
        pad_edge=False,
    )
    for place, name in enumerate(columns):
        if place:
            table.add_column(name, justify="right", no_wrap=True)
        else:  # a long name goes on in the next line: numbers are never cut
            table.add_column(name, overflow="fold")
    return table


def _run_counts(results: Mapping[str, Result]) -> tuple[int, list[str]]:
    """How many runs most methods have, and which have another number."""
    counts = {name: len(r.complete_runs) for name, r in results.items()}
    usual = max(sorted(set(counts.values()), reverse=True), key=list(counts.values()).count)
    others: dict[int, list[str]] = {}
    for name, count in counts.items():
        if count != usual:
            others.setdefault(count, []).append(name)
    return usual, [f"{counted(count, 'run')}: {', '.join(names)}." for count, names in sorted(others.items())]


def _fewer(results: Mapping[str, Result]) -> list[str]:
    """Whose forward transfer is of fewer runs than the rest."""
    found: dict[str, list[str]] = {}
    for name, r in results.items():
        if r.fwt is not None and of_fewer(r.fwt, r):
            found.setdefault(f"{r.fwt.count} of {counted(len(r.complete_runs), 'run')}", []).append(name)
    if not found:
        return []
    told = [count if len(some) == len(results) else f"{count} ({_some(some)})" for count, some in found.items()]
    return [f"FWT here is of {', '.join(told)}: the others have no {REFERENCES[-1]} of their seed beside them."]


def of_fewer(measure: Summary | None, r: ResultBase) -> str:
    """The number of runs that have a measure, where the column of runs says more."""
    return "" if measure is None or measure.count == len(r.complete_runs) else f", n {measure.count}"


def diverged(results: Mapping[str, ResultBase]) -> list[str]:
    """Which runs are missing from the means, since their loss did not stay finite."""
    lost = {name: len(r.runs) - len(r.complete_runs) for name, r in results.items()}
    told = [f"{name} {n} of {counted(len(results[name].runs), 'run')}" for name, n in lost.items() if n]
    return [f"Diverged: {_some(told)}."] if told else []


def run_count(r: ResultBase) -> str:
    """The complete runs, and of how many where some diverged."""
    complete = len(r.complete_runs)
    return str(complete) if complete == len(r.runs) else f"{complete} of {len(r.runs)}"


def _some(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names) if rest <= 0 else f"{', '.join(names[:most])} and {rest} more"


def _memories(results: Mapping[str, Result]) -> list[str]:
    """Which of the methods keep old samples, and how many."""
    kept = {name: r.config["hyper"].get("memory") for name, r in results.items()}
    return [f"{name} keeps {n} old samples of every class." for name, n in kept.items() if n]


def _held_out(results: Mapping[str, Result]) -> list[str]:
    return [HELD_OUT] if any(r.held_out for r in results.values()) else []


def results_json(results: Mapping[str, Result], seconds: float, device: str) -> dict[str, Any]:
    """Points of a grid also say their values, and `best` names every method's best point."""
    first, best = next(iter(results.values())), best_points(results)
    return {
        "benchmark": first.benchmark,
        "methods": {name: r.summary() | r.told() for name, r in results.items()},
        **({"best": best} if best else {}),
        "seconds": round(seconds, 2),
        "device": device,
    }


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes / 60:.1f} h"


def rough_duration(seconds: float) -> str:
    """In few characters: 41.4 s, 2.1 min."""
    return f"{seconds / 60:.1f} min" if 100 <= seconds < 6000 else duration(seconds)
