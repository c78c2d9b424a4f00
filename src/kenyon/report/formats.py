"""Results in other formats: Markdown, LaTeX and CSV; and measured next to published accuracies."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kenyon.experiments.results import Result, ResultBase
from kenyon.experiments.tidy import tidy_rows
from kenyon.methods.registry import place
from kenyon.metrics import Summary
from kenyon.report.tables import (
    BENCHMARKS,
    BEST,
    HELD_OUT,
    REFERENCE,
    REFERENCES,
    best_points,
    duration,
    of_fewer,
    pm,
    published,
    run_count,
)
from kenyon.utils.text import counted
from kenyon.utils.views import View

if TYPE_CHECKING:
    from kenyon.experiments.results import GameResult

NORMALIZED = ("nar", "np", "ns")  # measures of games
USUAL = 5  # runs; another number is shown in the overview
NEAR = 1.5  # points: about two standard errors of a difference of two means of five runs on CIFAR-100
FAR = 5.0  # points at which colors end: one outlier would make all others alike

Results = Mapping[str, Mapping[str, Result]]  # benchmark -> label -> result


# ---------------------------------------------------------------------- Markdown


def results_markdown(results: Results) -> str:
    """Return a table per benchmark -> label -> result; the best measured average accuracy is bold."""
    return "\n\n".join(_table(benchmark, methods) for benchmark, methods in results.items())


def overview_markdown(results: Results) -> str:
    """Return a table of methods by benchmarks: measured average accuracy, published below it; the best is bold."""
    benchmarks = [name for name in BENCHMARKS if name in results] + sorted(set(results) - set(BENCHMARKS))
    cells: dict[str, dict[str, Result]] = {}
    for benchmark in benchmarks:
        for label, r in results[benchmark].items():
            if r.method != REFERENCE:
                cells.setdefault(label, {})[benchmark] = r
    best = {b: max((_mean(row[b]) for row in cells.values() if b in row), default=0.0) for b in benchmarks}

    def cell(benchmark: str, row: Mapping[str, Result]) -> str:
        if benchmark not in row:
            return ""
        r = row[benchmark]
        known = published(r)
        number = f"**{pm(r.aac)}**" if 0 < _mean(r) == best[benchmark] else pm(r.aac)
        runs = "" if len(r.complete_runs) == USUAL else f", n {run_count(r)}"
        return f"{number}{runs}" + (f"<br>({known:.2f})" if known is not None else "")

    lines = ["| | " + " | ".join(benchmarks) + " |", "|---" + "|---:" * len(benchmarks) + "|"]
    labels = sorted(cells, key=lambda label: place(next(iter(cells[label].values())).method))
    rows = (f"| `{label}` | " + " | ".join(cell(b, cells[label]) for b in benchmarks) + " |" for label in labels)
    return "\n".join([*lines, *rows])


def _mean(r: Result) -> float:
    return r.aac.mean if r.aac is not None and r.method not in REFERENCES else 0.0


def _table(benchmark: str, results: Mapping[str, Result]) -> str:
    names = sorted(
        (name for name, r in results.items() if r.method != REFERENCE),
        key=lambda name: place(results[name].method),  # grid points of a method keep their order
    )
    means = {
        name: aac.mean
        for name in names
        if (aac := results[name].aac) is not None and results[name].method not in REFERENCES
    }
    starred = set(best_points(results).values())
    best = max(means, key=lambda name: means[name], default=None)
    head = ["method", "AAC % (measured)", "published", "BWT", "FWT", "runs", "parameters", "time"]
    lines = [f"**{benchmark}**", "", "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name in names:
        r = results[name]
        measured = f"**{pm(r.aac)}**" if name == best else pm(r.aac)
        known = published(r)
        cells = [
            f"`{name}`" + (" *" if name in starred else ""),
            measured,
            "-" if known is None else f"{known:.2f}",
            pm(r.bwt, 1),
            pm(r.fwt, 1) + of_fewer(r.fwt, r),
            run_count(r),
        ]
        lines.append("| " + " | ".join([*cells, f"{r.parameters:,}", duration(r.seconds)]) + " |")
    notes = [f"\\{BEST}"] if starred else []
    notes += [HELD_OUT] if any(r.held_out for r in results.values()) else []
    return "\n".join([*lines, "", *notes] if notes else lines)


# ---------------------------------------------------------------------- LaTeX and CSV


def results_latex(results: Mapping[str, Result], *, best: bool = False) -> str:
    r"""Return a LaTeX table of the results of one benchmark by label, one row per method.

    Cells are mean $\pm$ standard error over n runs. `best` prints the best average accuracy in bold. The table needs
    \usepackage{booktabs}.
    """
    shown = {label: r for label, r in results.items() if r.method != REFERENCE} or results
    measures = {label: {"AAC (%)": r.aac, "BWT": r.bwt, "FWT": r.fwt} for label, r in shown.items()}
    return _latex(next(iter(shown.values())).title, shown, measures, best=best)


def scores_latex(title: str, scores: Mapping[str, GameResult], *, best: bool = False) -> str:
    """Return a LaTeX table of a suite of games: NAR, NP and NS if fine-tuning is there, and final scores of games."""
    from kenyon.experiments.compare import measures

    found = measures(scores)
    table: dict[str, dict[str, Summary | None]] = {}
    for label, r in scores.items():
        normalized = {name.upper(): getattr(found[label], name) if label in found else None for name in NORMALIZED}
        table[label] = (normalized if found else {}) | {name: r.final(g) for g, name in enumerate(r.games)}
    return _latex(title, scores, table, best=best and bool(found))


def _latex(
    title: str,
    results: Mapping[str, ResultBase],
    measures: Mapping[str, Mapping[str, Summary | None]],
    *,
    best: bool,
) -> str:
    """A table of measures by label and name; `best` is by the first measure."""
    names = [name for name in next(iter(measures.values())) if any(some[name] for some in measures.values())]
    means = {
        label: value.mean
        for label, some in measures.items()
        if names and (value := some[names[0]]) is not None and results[label].method not in REFERENCES
    }
    top = max(means.values()) if best and len(means) > 1 else None
    rows = [["Method", *map(_escaped, names), "$n$"]]
    for label, r in sorted(results.items(), key=lambda pair: place(pair[1].method)):
        bold = top is not None and means.get(label) == top
        cells = [_cell(measures[label][name], r, bold=bold and name == names[0]) for name in names]
        rows.append([_escaped(label), *cells, run_count(r)])
    head, *body = (" & ".join(row) + r" \\" for row in rows)
    return "\n".join(
        [
            f"% {_escaped(title)}: mean and standard error over n runs; needs \\usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{l{'r' * (len(names) + 1)}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
        ]
    )


def _cell(value: Summary | None, r: ResultBase, *, bold: bool) -> str:
    if value is None:
        return "--"
    number = value.text().replace("±", r"\pm")
    number = rf"$\mathbf{{{number}}}$" if bold else f"${number}$"
    return number + of_fewer(value, r).replace(", n ", ", $n$ = ")


SPECIAL = str.maketrans(
    {
        **{sign: "\\" + sign for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
)


def _escaped(text: str) -> str:
    return text.translate(SPECIAL)


def results_csv(results: Iterable[ResultBase]) -> str:
    """Return results as CSV, a row per run, number of learned tasks and task; see `tidy_rows`."""
    columns, rows = tidy_rows(results)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ---------------------------------------------------------------------- measured next to published


def differences(results: Results) -> dict[tuple[str, str], float]:
    """Return (benchmark, label) -> measured minus published, in points, if both are known."""
    return {
        (benchmark, label): r.aac.mean - value
        for benchmark, methods in results.items()
        for label, r in methods.items()
        if (value := published(r)) is not None and r.aac is not None
    }


def published_sentence(results: Results) -> str:
    """Return a sentence on how many published values are reached, and which are not; empty if none is known."""
    found = differences(results)
    if not found:
        return ""
    low = sorted((value, *where) for where, value in found.items() if value < -NEAR)
    reached = sum(value >= 0 for value in found.values())
    named = ", ".join(f"{label} on {benchmark} by {-value:.1f}" for value, benchmark, label in low)
    return (
        f"Of {counted(len(found), 'published number')}, reached or passed: {reached}; missed by at most {NEAR:g} "
        f"points: {len(found) - reached - len(low)}; by more: {len(low)}"
        f"{f' ({named})' if named else ''}."
    )


def published_view(results: Results) -> View:
    """Return a heat map of methods by benchmarks: measured minus published, in points."""
    found = differences(results)
    benchmarks = sorted({b for b, _ in found}, key=lambda b: (BENCHMARKS.index(b) if b in BENCHMARKS else 99, b))
    labels = sorted({label for _, label in found}, key=place)
    return {
        "kind": "heatmap",
        "title": "Average accuracy measured, minus published",
        "note": f"Points; colours end at {FAR:g}. Empty: nothing is published.",
        "x": "",
        "y": "",
        "rows": labels,
        "columns": benchmarks,
        "data": [[found.get((b, label)) for b in benchmarks] for label in labels],
        "scale": "diverging",
        "range": [-FAR, FAR],
        "digits": 1,
    }
