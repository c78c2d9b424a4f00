"""Results as tables for the terminal and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kenyon.experiments.results import Result, ResultBase
from kenyon.metrics import Summary
from kenyon.utils.text import counted

REFERENCE = "random-init"  # forward transfer is measured against it
REFERENCES = ("joint", "joint-af1", "joint-mcl", "joint-caf", REFERENCE)  # not continual: they are never the best
BENCHMARKS = ("s-cifar-100", "r-cifar-100", "r-cifar-10-100", "omniglot", "cub-200", "tiny-imagenet", "core50")
BEST = "*: the best point of its method on these seeds, by what it was tested on; `kenyon search` chooses without."
HELD_OUT = "Runs of a search: accuracies of held-out training data, to choose settings by. They are no test results."
MEANINGS = {
    "AAC %": "AAC: accuracy of all tasks in the end.",
    "BWT": "BWT: backward transfer.",
    "FWT": "FWT: forward transfer.",
    "Cos": "Cos: diversity of the learners' predictions.",
}


def published(result: Result) -> float | None:
    """Return the published average accuracy of a result's method and settings, if there is one."""
    from kenyon.experiments.published import published_for

    return published_for(result)


class FittingTable(Table):
    """A table that leaves out columns, and names them, if a narrow terminal has no room for the names of its rows."""

    LEAST_FIRST = ("time", "runs", "Cos", "FWT", "BWT", "published")
    NAME = 12  # characters reserved for a name; a longer one is wrapped

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, left_out = copy(self), []
        for title in self.LEAST_FIRST:
            if self._least_width(shown, console, options) <= options.max_width:
                break
            if any(column.header == title for column in shown.columns):
                shown.columns = [column for column in shown.columns if column.header != title]
                left_out.append(title)
        if left_out:
            note = f"Left out, for want of room: {', '.join(left_out)}."
            shown.caption = f"{self.caption} {note}" if self.caption else note
        yield from Table.__rich_console__(shown, console, options)

    def _least_width(self, table: Table, console: Console, options: ConsoleOptions) -> int:
        wide = options.update(max_width=10_000)
        first, *others = (
            max(Measurement.get(console, wide, cell).maximum for cell in (column.header, *column.cells))
            for column in table.columns
        )
        return min(first, self.NAME) + sum(others) + len(others) + 2  # spaces between them and at both edges


class Label:
    """The name of a grid point in a table, with one value per line if the other columns, `others` wide, leave little
    room.
    """

    def __init__(self, text: str, others: int) -> None:
        self.whole, self.lines, self.others = Text(text), Text(text.replace(",", ",\n ")), others

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        room = options.max_width - self.others
        return Measurement.get(console, options, self.whole if len(self.whole) <= room else self.lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.whole if len(self.whole) <= options.max_width else self.lines


def pm(summary: Summary | None, digits: int = 2) -> str:
    """Return mean ± standard error, or a dash."""
    return "-" if summary is None else summary.text(digits)


def best_points(results: Mapping[str, Result]) -> dict[str, str]:
    """Return for every method with several grid points on the same seeds the label of the most accurate one."""
    means: dict[str, dict[str, float]] = {}
    seeds: dict[str, set[frozenset[int]]] = {}
    for label, r in results.items():
        if r.point and r.aac is not None:
            means.setdefault(r.method, {})[label] = r.aac.mean
            seeds.setdefault(r.method, set()).add(frozenset(run.seed for run in r.runs))
    comparable = {method: some for method, some in means.items() if len(some) > 1 and len(seeds[method]) == 1}
    return {method: max(some, key=lambda label: some[label]) for method, some in comparable.items()}


def results_tables(results: Mapping[str, Result]) -> list[Table]:
    """Make the table of methods of one benchmark, and one of grid points for each method that has them."""
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
    """Make a table of one row per method; the best average accuracy is bold. Empty columns are left out."""
    first = next(iter(results.values()))
    columns = _measured(results)
    columns["time"] = {name: duration(r.seconds) for name, r in results.items()}
    known = {name: published(r) for name, r in results.items()}
    if any(value is not None for value in known.values()):
        columns["published"] = {name: "-" if value is None else f"{value:.2f}" for name, value in known.items()}
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
    """Make a table of one row per grid point; the best has a star. `explained`: with the columns' meanings."""
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
    others = sum(max(map(len, [title, *column.values()])) for title, column in columns.items())
    for name in results:
        text = point_text(method, name) + (" *" if name in starred else "")
        table.add_row(Label(text, others), *(column[name] for column in columns.values()))
    return table


def point_text(method: str, label: str) -> str:
    """Return the values in a grid point's label, without the method."""
    return label.removeprefix(method).removeprefix("[").removesuffix("]")


def _measured(results: Mapping[str, Result]) -> dict[str, dict[str, str]]:
    """Return column -> label -> text for all measures that some result has."""
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
    first, *others = columns
    table.add_column(first, overflow="fold")  # wraps long names; numbers are never cut
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _run_counts(results: Mapping[str, Result]) -> tuple[int, list[str]]:
    """Return the most frequent number of runs, and sentences that name the methods with another number."""
    counts = {name: len(r.complete_runs) for name, r in results.items()}
    usual = max(sorted(set(counts.values()), reverse=True), key=list(counts.values()).count)
    others: dict[int, list[str]] = {}
    for name, count in counts.items():
        if count != usual:
            others.setdefault(count, []).append(name)
    return usual, [f"{counted(count, 'run')}: {', '.join(names)}." for count, names in sorted(others.items())]


def _fewer(results: Mapping[str, Result]) -> list[str]:
    """A sentence that names results whose forward transfer is of fewer runs than their other measures."""
    found: dict[str, list[str]] = {}
    for name, r in results.items():
        if r.fwt is not None and of_fewer(r.fwt, r):
            found.setdefault(f"{r.fwt.count} of {counted(len(r.complete_runs), 'run')}", []).append(name)
    if not found:
        return []
    counts = [count if len(some) == len(results) else f"{count} ({_some(some)})" for count, some in found.items()]
    return [f"FWT here is of {', '.join(counts)}: the others have no {REFERENCE} run of their seed."]


def of_fewer(measure: Summary | None, r: ResultBase) -> str:
    """Return ", n COUNT" if fewer runs have the measure than are complete."""
    return "" if measure is None or measure.count == len(r.complete_runs) else f", n {measure.count}"


def diverged(results: Mapping[str, ResultBase]) -> list[str]:
    """A sentence that names results with diverged runs, which the means leave out."""
    lost = {name: len(r.runs) - len(r.complete_runs) for name, r in results.items()}
    texts = [f"{name} {n} of {counted(len(results[name].runs), 'run')}" for name, n in lost.items() if n]
    return [f"Diverged: {_some(texts)}."] if texts else []


def run_count(r: ResultBase) -> str:
    """Return the number of complete runs, and of how many if some diverged."""
    complete = len(r.complete_runs)
    return str(complete) if complete == len(r.runs) else f"{complete} of {len(r.runs)}"


def _some(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names) if rest <= 0 else f"{', '.join(names[:most])} and {rest} more"


def _memories(results: Mapping[str, Result]) -> list[str]:
    """Sentences that name methods with replay memory, and its size."""
    kept = {name: r.config["hyper"].get("memory") for name, r in results.items()}
    return [f"{name} keeps {n} old samples of every class." for name, n in kept.items() if n]


def _held_out(results: Mapping[str, Result]) -> list[str]:
    return [HELD_OUT] if any(r.held_out for r in results.values()) else []


def results_json(results: Mapping[str, Result], seconds: float, device: str) -> dict[str, Any]:
    """Return the results of a benchmark as plain values; grid points have theirs, and `best` the best of a method."""
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
    """Return a duration in few characters: 41.4 s, 2.1 min."""
    return f"{seconds / 60:.1f} min" if 100 <= seconds < 6000 else duration(seconds)
