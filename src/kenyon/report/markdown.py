"""Results as Markdown, for the README: measured beside published, with n, standard error and time.

Measured beside published average accuracies, of all benchmarks at once: a sentence and a chart.
"""

from __future__ import annotations

from collections.abc import Mapping

from kenyon.experiments.published import published_for
from kenyon.experiments.results import Result
from kenyon.methods.registry import place
from kenyon.report.tables import BEST, HELD_OUT, REFERENCES, best_points, duration, of_fewer, pm, run_count
from kenyon.utils.text import counted
from kenyon.utils.views import View

BENCHMARKS = ("s-cifar-100", "r-cifar-100", "r-cifar-10-100", "omniglot", "cub-200", "tiny-imagenet", "core50")
USUAL = 5  # runs; another number is told


def results_markdown(results: Mapping[str, Mapping[str, Result]]) -> str:
    """One table a benchmark -> label -> result; the best measured average accuracy is bold."""
    return "\n\n".join(_table(benchmark, methods) for benchmark, methods in results.items())


def overview_markdown(results: Mapping[str, Mapping[str, Result]]) -> str:
    """All methods by all benchmarks: average accuracy measured, below it published; a column's best is bold."""
    benchmarks = [name for name in BENCHMARKS if name in results] + sorted(set(results) - set(BENCHMARKS))
    cells: dict[str, dict[str, Result]] = {}
    for benchmark in benchmarks:
        for label, r in results[benchmark].items():
            if r.method != "random-init":
                cells.setdefault(label, {})[benchmark] = r
    best = {b: max((_mean(row[b]) for row in cells.values() if b in row), default=0.0) for b in benchmarks}

    def cell(benchmark: str, row: Mapping[str, Result]) -> str:
        if benchmark not in row:
            return ""
        r = row[benchmark]
        published = published_for(r)
        number = f"**{pm(r.aac)}**" if 0 < _mean(r) == best[benchmark] else pm(r.aac)
        runs = "" if len(r.complete_runs) == USUAL else f", n {run_count(r)}"
        return f"{number}{runs}" + (f"<br>({published:.2f})" if published is not None else "")

    lines = ["| | " + " | ".join(benchmarks) + " |", "|---" + "|---:" * len(benchmarks) + "|"]
    labels = sorted(cells, key=lambda label: place(next(iter(cells[label].values())).method))
    rows = (f"| `{label}` | " + " | ".join(cell(b, cells[label]) for b in benchmarks) + " |" for label in labels)
    return "\n".join([*lines, *rows])


def _mean(r: Result) -> float:
    return r.aac.mean if r.aac is not None and r.method not in REFERENCES else 0.0


def _table(benchmark: str, results: Mapping[str, Result]) -> str:
    names = sorted(
        (name for name, r in results.items() if r.method != "random-init"),
        key=lambda name: place(results[name].method),  # the points of a method stay as they come
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
        published = published_for(r)
        cells = [
            f"`{name}`" + (" *" if name in starred else ""),
            measured,
            "-" if published is None else f"{published:.2f}",
            pm(r.bwt, 1),
            pm(r.fwt, 1) + of_fewer(r.fwt, r),
            run_count(r),
        ]
        lines.append("| " + " | ".join([*cells, f"{r.parameters:,}", duration(r.seconds)]) + " |")
    said = [f"\\{BEST}"] if starred else []
    said += [HELD_OUT] if any(r.held_out for r in results.values()) else []
    return "\n".join([*lines, "", *said] if said else lines)


NEAR = 1.5  # points: about two standard errors of a difference of two means of five runs on CIFAR-100
FAR = 5.0  # points, where colours end: one value far away would make all others alike

Results = Mapping[str, Mapping[str, Result]]  # benchmark -> label -> result


def differences(results: Results) -> dict[tuple[str, str], float]:
    """(benchmark, label) -> measured minus published, in points, wherever both are known."""
    return {
        (benchmark, label): r.aac.mean - value
        for benchmark, methods in results.items()
        for label, r in methods.items()
        if (value := published_for(r)) is not None and r.aac is not None
    }


def published_sentence(results: Results) -> str:
    """How many published values come out, and which do not; nothing where none is known."""
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
    """Methods by benchmarks: by how many points what was measured is above what is published."""
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
