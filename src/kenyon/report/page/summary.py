"""Tables of the page: the overview, the summary of a benchmark, and the origin of every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kenyon.experiments.results import Result, ResultBase, Run, value_text
from kenyon.metrics import Summary, average_accuracy, backward_transfer, forward_transfer, learning_accuracy
from kenyon.report.page.entries import Entry, Group, bar, values_of
from kenyon.report.page.html import MISSING, Markup, breakable, joined, scrolled, shown, table, tag, with_error
from kenyon.report.tables import best_points, duration, of_fewer, published, run_count
from kenyon.utils.text import counted
from kenyon.utils.views import View


def pm(summary: Summary | None, digits: int = 2) -> str:
    """Return mean ± standard error, or a dash."""
    if summary is None:
        return MISSING
    return with_error(summary.mean, None if math.isnan(summary.sem) else summary.sem, digits)


def distance(result: Result) -> float | None:
    """Return measured minus published average accuracy, in standard errors of the measured mean."""
    value, aac = published(result), result.aac
    if value is None or aac is None or not aac.sem > 0:
        return None
    return (aac.mean - value) / aac.sem


@dataclass(frozen=True)
class Cell:
    """A cell of the summary."""

    text: str
    value: float | None  # to sort by
    tip: str = ""


@dataclass(frozen=True)
class Column:
    """A column of the summary."""

    name: str
    meaning: str
    cell: Callable[[Result], Cell]
    best: bool = False  # mark the largest value
    optional: bool = False  # leave the column out if it is empty


def _measure(name: str, digits: int) -> Callable[[Result], Cell]:
    def cell(result: Result) -> Cell:
        summary: Summary | None = getattr(result, name)
        values = ", ".join(shown(v if math.isfinite(v) else None, digits) for v in summary.runs) if summary else ""
        text = pm(summary, digits) + of_fewer(summary, result)
        return Cell(text, summary.mean if summary else None, f"runs: {values}" if values else "")

    return cell


def _runs(result: Result) -> Cell:
    complete, seeds = len(result.complete_runs), ", ".join(str(run.seed) for run in result.runs)
    lost = len(result.runs) - complete
    return Cell(
        run_count(result), complete, f"seeds {seeds}" + (f"; {lost} diverged" if lost else "") if seeds else "no runs"
    )


def _published(result: Result) -> Cell:
    return Cell(shown(published(result)), published(result))


def _distance(result: Result) -> Cell:
    value, known, aac = distance(result), published(result), result.aac
    if value is None or known is None or aac is None:
        return Cell(MISSING, None)
    tip = f"{shown(aac.mean - known, sign=True)} points, standard error {shown(aac.sem)}"
    return Cell(f"{shown(value, 1, sign=True)} SE", value, tip)


COLUMNS = (
    Column("AAC, %", "average accuracy of all tasks in the end", _measure("aac", 2), best=True),
    Column("runs", "complete runs", _runs),
    Column("published", "published average accuracy, %", _published, optional=True),
    Column(
        "difference",
        "measured minus published, in standard errors of the measured mean",
        _distance,
        optional=True,
    ),
    Column("BWT", "backward transfer, points: what later tasks did to earlier ones", _measure("bwt", 2), best=True),
    Column(
        "FWT",
        "forward transfer, points: a task before it is learned, minus learned from a random start",
        _measure("fwt", 2),
        best=True,
        optional=True,
    ),
    Column("just learned, %", "accuracy of a task right after it was learned", _measure("learned", 2), best=True),
    Column("parameters", "of one run, heads included", lambda r: Cell(f"{r.parameters:,}", r.parameters)),
    Column("time", "all runs together", lambda r: Cell(duration(r.seconds), r.seconds)),
)


def summary_tables(group: Group, origins: Mapping[str, str]) -> list[Markup]:
    """Tables of the methods, and folded below it of each method's grid points. Numbers are links to their origin."""
    folded = [
        tag(
            "details",
            tag("summary", tag("bdi", method), f": {counted(len(points), 'point')} of a grid"),
            _summary(points, f"{group.benchmark}, {method}", origins, short=True),
            class_="points",
        )
        for method, points in group.variants.items()
    ]
    return [_summary(group.main, group.benchmark, origins), *folded]


def _summary(entries: Sequence[Entry], name: str, origins: Mapping[str, str], *, short: bool = False) -> Markup:
    """The summary table. `short`: grid points are named by their values alone."""
    cells = {e.label: {c.name: c.cell(e.result) for c in COLUMNS} for e in entries}
    columns = [c for c in COLUMNS if not c.optional or any(some[c.name].value is not None for some in cells.values())]
    starred = set(best_points({e.label: e.result for e in entries}).values())
    rivals = [cells[e.label] for e in entries if e.compared]
    best = {c.name: _best([some[c.name] for some in rivals]) for c in columns if c.best}
    head = [tag("th", "point" if short else "method", scope="col", data_sort="text")]
    head += [tag("th", c.name, scope="col", data_sort="number", data_tip=c.meaning) for c in columns]
    names = [c.name for c in columns]
    rows = [
        _row(
            e,
            values_of(e) if short else e.label,
            {n: cells[e.label][n] for n in names},
            best,
            origins[e.label],
            e.label in starred,
        )
        for e in entries
    ]
    stars = " ★: the best point of its method on these seeds." if starred else ""
    caption = (
        f"{name}: mean ± standard error over runs. Bold with a dot: the best of its column.{stars} "
        "Every number leads to its origin."
    )
    made = tag(
        "table",
        tag("caption", tag("div", caption)),
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        class_="summary",
    )
    return scrolled(made, f"Summary of {name}")


def _best(cells: Sequence[Cell]) -> float | None:
    values = [cell.value for cell in cells if cell.value is not None]
    return max(values) if len(values) > 1 else None


def _row(
    entry: Entry, text: str, cells: Mapping[str, Cell], best: Mapping[str, float | None], origin: str, starred: bool
) -> Markup:
    made = []
    for column, cell in cells.items():
        wins = entry.compared and cell.value is not None and cell.value == best.get(column)
        number = joined(cell.text, tag("span", " (best)", class_="unseen") if wins else None)
        tip = cell.tip or None
        link = tag("a", number, href=f"#{origin}", data_tip=tip, aria_description=tip)
        value = None if cell.value is None else repr(float(cell.value))
        made.append(tag("td", link, data_value=value, class_="best" if wins else None))
    star = tag("abbr", " ★", title="the best point of its method") if starred else None
    named = tag("span", breakable(text), star) if entry.result.point else text
    name = tag("a", tag("span", class_="swatch", data_label=entry.label), named, href=f"#{origin}")
    return tag("tr", tag("th", name, scope="row", class_="of-grid" if entry.result.point else None), made)


def standing(group: Group) -> View:
    """Return a chart of the average accuracy of all methods, best first, with the published values."""
    rated = [(e, aac) for e in group.drawn if (aac := e.aac) is not None]
    rated.sort(key=lambda pair: -pair[1].mean)
    data = [bar(e.label, aac) | {"reference": published(e.result)} for e, aac in rated]
    return {
        "kind": "bars",
        "title": group.benchmark,
        "x": f"average accuracy {'on held-out training data' if group.held_out else 'in the end'}, %",
        "reference_name": "published",
        "style": "dots",
        "digits": 2,
        "data": data,
    }


def best_entry(group: Group) -> Entry | None:
    rated = [(aac.mean, e) for e in group.main if e.compared and (aac := e.aac) is not None]
    return max(rated, key=lambda pair: pair[0])[1] if rated else None


def overview_table(
    groups: Sequence[Group], places: Mapping[str, str], origins: Mapping[str, Mapping[str, str]]
) -> Markup:
    rows = []
    for group in groups:
        best = best_entry(group)
        runs = sum(len(e.result.runs) for e in group.shown)
        devices = sorted({f.device for e in group.entries for f in e.result.fleets})
        to = f"#{origins[group.benchmark][best.label]}" if best else None
        rows.append(
            [
                tag("a", group.benchmark, href=f"#{places[group.benchmark]}"),
                str(len(group.shown)),
                str(runs),
                best.label if best else MISSING,
                tag("a", pm(best.aac), href=to) if best else MISSING,
                ", ".join(devices) or MISSING,
                duration(sum(e.result.seconds for e in group.entries)),
            ]
        )
    head = ["benchmark", "results", "runs", "best", "its AAC, %", "device", "time"]
    return scrolled(table("All benchmarks", head, rows), "Overview")


@dataclass(frozen=True)
class Origin:
    """The origin of one result, of images or of games."""

    label: str
    file: str
    result: ResultBase
    runs: Markup  # a table of them
    place: str  # where links to it lead


def origin_part(note: str, some: Sequence[Origin], place: str) -> Markup:
    """Make the last part of a benchmark or suite."""
    return tag(
        "section",
        tag("h3", "Origin", id=f"{place}-title"),
        tag("p", note, class_="note"),
        [_folded(one) for one in some],
        class_="part",
        id=place,
        aria_labelledby=f"{place}-title",
    )


def _folded(one: Origin) -> Markup:
    """A folded element; a link to the place inside opens it."""
    parts = [
        _settings(one.result),
        scrolled(one.runs, f"Runs of {one.label}"),
        scrolled(_fleets(one.result), f"Machines of {one.label}") if one.result.fleets else None,
    ]
    return tag(
        "details",
        tag("summary", tag("span", class_="swatch", data_label=one.label), one.label),
        tag("div", tag("p", "File: ", tag("code", one.file)), parts, id=one.place, class_="inside", tabindex=-1),
        class_="origin",
    )


def _settings(result: ResultBase) -> Markup:
    from kenyon.experiments.store import flatten

    settings = {**flatten(result.config), "parameters": f"{result.parameters:,}"}
    if result.point:
        settings |= {"values of this point": ", ".join(f"{k}={value_text(v)}" for k, v in result.point.items())}
    if result.unsealed:
        settings["without a checksum"] = f"numbers of seeds {', '.join(map(str, result.unsealed))}"
    texts = {n: ", ".join(map(str, v)) if isinstance(v, list) else value_text(v) for n, v in settings.items()}
    pairs = [tag("div", tag("dt", name), tag("dd", text)) for name, text in texts.items()]
    return tag("dl", pairs, class_="settings")


def runs_table(result: Result) -> Markup:
    head = ["seed", "AAC, %", "BWT", "FWT", "just learned, %", "ended", "tasks in their order"]
    return table("Runs", head, [_run(result, run) for run in result.runs])


def _run(result: Result, run: Run) -> list[str]:
    measured = _measured(result, run) if run.complete else [MISSING] * 4
    if run.diverged is None:
        ended = "complete"
    else:
        task, epoch = run.diverged
        ended = f"diverged in task {task + 1}, epoch {epoch + 1}"
    return [str(run.seed), *measured, ended, ", ".join(run.tasks)]


def _measured(result: Result, run: Run) -> list[str]:
    matrix = run.matrix
    values: list[float] = [average_accuracy(matrix)] + [math.nan] * 3
    if len(run.accuracy) == len(run.tasks):
        alone = result.alone.get(run.seed)
        values[1] = backward_transfer(matrix)
        values[2] = forward_transfer(matrix, np.array(alone)) if alone is not None else math.nan
        values[3] = learning_accuracy(matrix)
    return [shown(v if math.isfinite(v) else None) for v in values]


def _fleets(result: ResultBase) -> Markup:
    head = ["seeds", "seconds", "device", "precision", "finished (UTC)", "versions"]
    rows = []
    for fleet in result.fleets:
        share = f", their share of {fleet.together} runs trained together" if fleet.together else ""
        rows.append(
            [
                ", ".join(map(str, fleet.seeds)),
                f"{fleet.seconds:,.2f} ({duration(fleet.seconds)}){share}",
                fleet.device,
                fleet.precision,
                fleet.finished.replace("T", " ").removesuffix("+00:00"),
                ", ".join(f"{name} {version}" for name, version in fleet.versions.items()),
            ]
        )
    return table("Where and when", head, rows)
