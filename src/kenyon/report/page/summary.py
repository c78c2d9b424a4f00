"""The numbers a reader comes for: the overview of all benchmarks, and the summary table of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kenyon.experiments.published import published_for
from kenyon.experiments.results import Result
from kenyon.metrics import Summary
from kenyon.report.page.entries import Entry, Group, values_of
from kenyon.report.page.html import MISSING, Markup, breakable, joined, scrolled, shown, table, tag, with_error
from kenyon.report.page.measures import bar
from kenyon.report.tables import best_points, duration, of_fewer, run_count
from kenyon.utils.text import counted
from kenyon.utils.views import View


def pm(summary: Summary | None, digits: int = 2) -> str:
    """mean ± standard error, as the tables of the terminal have it."""
    if summary is None:
        return MISSING
    return with_error(summary.mean, None if math.isnan(summary.sem) else summary.sem, digits)


def distance(result: Result) -> float | None:
    """Measured minus published average accuracy, in standard errors of the measured mean."""
    value, aac = published_for(result), result.aac
    if value is None or aac is None or not aac.sem > 0:
        return None
    return (aac.mean - value) / aac.sem


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None  # to sort by
    tip: str = ""


@dataclass(frozen=True)
class Column:
    name: str
    meaning: str
    cell: Callable[[Result], Cell]
    best: bool = False  # the largest is marked
    optional: bool = False  # left out where nothing has a value


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
    return Cell(shown(published_for(result)), published_for(result))


def _distance(result: Result) -> Cell:
    value, known, aac = distance(result), published_for(result), result.aac
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
    """The methods, and folded below them the points of each method's grid. Every number is a link to its origin."""
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
    """`short`: points are named by their values alone."""
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
    entry: Entry, told: str, cells: Mapping[str, Cell], best: Mapping[str, float | None], origin: str, starred: bool
) -> Markup:
    made = []
    for column, cell in cells.items():
        wins = entry.compared and cell.value is not None and cell.value == best.get(column)
        text = joined(cell.text, tag("span", " (best)", class_="unseen") if wins else None)
        tip = cell.tip or None
        link = tag("a", text, href=f"#{origin}", data_tip=tip, aria_description=tip)
        value = None if cell.value is None else repr(float(cell.value))
        made.append(tag("td", link, data_value=value, class_="best" if wins else None))
    star = tag("abbr", " ★", title="the best point of its method") if starred else None
    named = tag("span", breakable(told), star) if entry.result.point else told
    name = tag("a", tag("span", class_="swatch", data_label=entry.label), named, href=f"#{origin}")
    return tag("tr", tag("th", name, scope="row", class_="of-grid" if entry.result.point else None), made)


def standing(group: Group) -> View:
    """Average accuracy of all methods, best first, beside what was published."""
    rated = [(e, aac) for e in group.drawn if (aac := e.aac) is not None]
    rated.sort(key=lambda pair: -pair[1].mean)
    data = [bar(e.label, aac) | {"reference": published_for(e.result)} for e, aac in rated]
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
