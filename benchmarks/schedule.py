"""A sweep of 10,000 runs on up to a thousand GPUs, simulated: `python benchmarks/schedule.py`.

The experiment is planned by `kenyon sweep` itself for every number of workers, its fleets cost what fleets that were
alone on an H200 were measured to cost (`ALONE`, `bench-h200.json`), and workers start, take fleets, die and are
replaced. Writes
`benchmarks/schedule.json` and `docs/pictures/schedule.png`; `benchmarks/update_readme.py` then makes the table of
`docs/scale.md`.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kenyon.bench import BenchResult
from kenyon.experiments.results import Result
from kenyon.report.figures import save_figure
from kenyon.sweep import open_space, plan_sweep
from kenyon.sweep.costs import Costs, Dying, Seen, Work, longest_first, seen_in, simulate

HERE = Path(__file__).parent
EXPERIMENT = """benchmark = ["r-cifar-100", "r-cifar-10-100"]
method = ["ewc", "caf-ewc"]
seeds = 100

[settings]
lambda_sp = [1e3, 2e3, 5e3, 1e4, 1.5e4, 2e4, 2.5e4, 5e4, 7.5e4, 1e5]
gamma = [0.001, 0.01, 0.02, 0.1]
"""
ALONE = (
    "h200/r-cifar-100/ewc",
    "h200/r-cifar-100/caf-ewc",
    "h200-af-current/r-cifar-10-100/ewc",
    "h200-af-current/r-cifar-10-100/caf-ewc",
)
WORKERS = (1, 8, 64, 256, 1000)
FLEET = 20  # runs together at most: `kenyon bench` has measured as many
START = 30.0  # seconds before a worker's first fleet: imports, data, compiling
DYING = Dying(every=4 * 3600.0, replaced=120.0)  # a worker lives 4 hours, and another is there 2 minutes later
DRAWS = 40  # of what is not known of the costs


def measured() -> list[Seen]:
    """Return costs of jobs measured on the H200, and of other sizes extrapolated by the steps of `kenyon bench`."""
    seen = [one for folder in ALONE for one in seen_in(Result.load(HERE / folder / "result.json"))]
    bench = BenchResult.load(HERE / "bench-h200.json")
    for method in bench.methods:
        steps = {
            record.runs: record.ms_per_run * record.runs
            for record in bench.sweep("runs", "r-cifar-100", method, "step")
        }
        fleet = next(s for s in seen if (s.work.benchmark, s.work.method) == ("r-cifar-100", method))
        of_this_size = steps[fleet.work.runs]
        seen += [
            replace(fleet, work=replace(fleet.work, runs=runs), seconds=fleet.seconds * step / of_this_size)
            for runs, step in steps.items()
            if runs != fleet.work.runs
        ]
    return seen


def planned(workers: int) -> list[Work]:
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "experiment.toml").write_text(EXPERIMENT)
        sweep = plan_sweep(file, open_space(Path(folder) / "out"), workers=workers, fleet=FLEET, fwt=False)
        return [Work.of(fleet.runs[0].config, len(fleet.runs)) for fleet in sweep.fleets]


def outlook(workers: int, seen: list[Seen]) -> dict[str, Any]:
    """Return medians over draws of the costs; the order follows the expected costs, as in a sweep."""
    works = planned(workers)
    costs = Costs(works, seen)
    order = longest_first(costs.seconds.tolist())
    shortest = order[::-1]
    ends: dict[str, list[float]] = {"longest_first": [], "shortest_first": [], "shared_evenly": [], "with_deaths": []}
    busy, deaths, again = [], [], []
    for seed, times in enumerate(costs.draws(DRAWS)):
        first, last = (simulate(times[o], workers, start=START) for o in (order, shortest))
        dying = simulate(times[order], workers, DYING, start=START, seed=seed)
        ends["longest_first"].append(first.seconds)
        ends["shortest_first"].append(last.seconds)
        ends["shared_evenly"].append(START + times.sum() / workers)
        ends["with_deaths"].append(dying.seconds)
        busy.append(first.busy)
        deaths.append(dying.deaths)
        again.append(dying.again / times.sum())
    low, high = np.quantile(ends["longest_first"], (0.1, 0.9))
    return {
        "workers": workers,
        "runs": sum(work.runs for work in works),
        "fleets": len(works),
        "largest": max(work.runs for work in works),
        "seconds": {name: round(float(np.median(values)), 1) for name, values in ends.items()},
        "range": [round(float(low), 1), round(float(high), 1)],
        "busy": round(float(np.median(busy)), 4),
        "deaths": float(np.median(deaths)),
        "again": round(float(np.median(again)), 6),
    }


def draw(body: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = body["rows"]
    workers = [row["workers"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, label, style in (
        ("shared_evenly", "work shared evenly", {"color": "#8c8c8c", "linestyle": "--"}),
        ("longest_first", "longest first", {"color": "#3b75af", "marker": "o"}),
        (
            "with_deaths",
            f"longest first, workers live {DYING.every / 3600:g} h",
            {"color": "#c53a32", "marker": "s", "markersize": 4},
        ),
    ):
        hours = [row["seconds"][name] / 3600 for row in rows]
        left.plot(workers, hours, label=label, **style)
    left.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="hours", title=f"{rows[0]['runs']:,} runs")
    left.set_xticks(workers, [f"{w:,}" for w in workers])
    left.xaxis.minorticks_off()
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.legend(frameon=False, fontsize=9)
    place = np.arange(len(rows))
    for shift, (name, label, colour) in enumerate(
        (
            ("longest_first", "longest first", "#3b75af"),
            ("shortest_first", "shortest first", "#e8a33d"),
            ("with_deaths", "longest first, with deaths", "#c53a32"),
        )
    ):
        over = [100 * (row["seconds"][name] / row["seconds"]["shared_evenly"] - 1) for row in rows]
        bars = right.bar(place + 0.27 * (shift - 1), over, 0.25, label=label, color=colour, alpha=0.9)
        right.bar_label(
            bars, [f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in over], fontsize=7, padding=2
        )
    right.set_xticks(place, [f"{w:,}" for w in workers])
    right.set(xlabel="GPUs", ylabel="% over work shared evenly", title="what waiting for the last fleets costs")
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    save_figure(figure, path, ())


def main() -> None:
    seen = measured()
    body = {
        "format": 1,
        "what": "10,000 runs planned by `kenyon sweep` and simulated with the measured costs of an H200",
        "experiment": EXPERIMENT,
        "start": START,
        "dying": {"every": DYING.every, "saved": DYING.saved, "noticed": DYING.noticed, "replaced": DYING.replaced},
        "seen": len(seen),
        "rows": [outlook(workers, seen) for workers in WORKERS],
    }
    (HERE / "schedule.json").write_text(json.dumps(body, indent=1) + "\n")
    draw(body, HERE.parent / "docs" / "pictures" / "schedule.png")


if __name__ == "__main__":
    main()
