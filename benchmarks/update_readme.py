"""Update the tables and pictures of results in the README and in docs/: `python benchmarks/update_readme.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from kenyon.bench import BenchResult
from kenyon.experiments.compare import load_results, measures
from kenyon.experiments.results import GameResult, Result
from kenyon.experiments.settings import settings_markdown
from kenyon.methods import METHODS
from kenyon.metrics import Summary
from kenyon.report.figures import draw_results
from kenyon.report.formats import overview_markdown, published_sentence, published_view, results_markdown
from kenyon.report.plots import draw_views
from kenyon.report.speed import number, speed_markdown, where
from kenyon.report.tables import duration, pm
from kenyon.rl.scores import fig6, reference

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = (
    HERE.parent / "README.md",
    *(DOCS / f"{page}.md" for page in ("games", "index", "results", "running", "scale", "speed")),
)
# Pictures of docs/pictures -> the folder of their results, and the methods that are shown.
PICTURES = {
    "digits": ("cpu", ("finetune", "si", "mas", "ewc", "caf-ewc")),
    "r-cifar-100": (
        "h200",
        ("finetune", "ewc", "mas", "ewc-af1", "mas-af1", "mcl-ewc", "mcl-mas", "caf-ewc", "caf-mas"),
    ),
}
SPEED = ("bench-h200", "bench-cpu")  # JSON files of `kenyon bench`, with their pictures; those that are there


def methods(folder: str) -> dict[str, dict[str, Result]]:
    """Return the results of a folder by benchmark and method, without variants of methods, which figures use."""
    found = load_results(HERE / folder)
    return {b: {label: r for label, r in some.items() if not r.point} for b, some in found.items()}


def results(folder: str) -> str:
    return results_markdown(methods(folder))


def speed() -> str:
    parts = []
    for name in SPEED:
        if (HERE / f"{name}.json").exists():
            parts.append(speed_markdown(BenchResult.load(HERE / f"{name}.json")))
            if (HERE / f"{name}.png").exists():
                parts.append(f"![{name}](../benchmarks/{name}.png)")
    return "\n\n".join(parts)


def steps(benchmark: str = "r-cifar-100") -> str:
    """Return a table of the training steps on all devices."""
    head = "device | method | runs at once | all runs, ms | plain, one run, ms | times faster"
    lines = [f"| {head} |", "|---|---|" + "---:|" * 4]
    for bench in (BenchResult.load(HERE / f"{name}.json") for name in SPEED if (HERE / f"{name}.json").exists()):
        for method in bench.methods:
            for r in bench.sweep("pieces", benchmark, method, "step"):
                plain = r.against[0]
                numbers = [number(v) for v in (r.ms.median, plain.ms.median, plain.ratio.median)]
                lines.append(f"| {where(bench)} | `{method}` | {r.runs} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def overview() -> str:
    return overview_markdown(methods("h200"))


def small() -> str:
    """A few methods on a few benchmarks, with 95 % intervals (Student's t)."""
    found, benchmarks = methods("h200"), ("s-cifar-100", "r-cifar-100", "r-cifar-10-100", "cub-200")
    lines = [f"| | {' | '.join(benchmarks)} |", "|---|" + "---:|" * len(benchmarks)]
    for method in ("finetune", "ewc", "ewc-af1", "mcl-ewc", "caf-ewc", "joint"):
        cells = (interval(found[name][method].aac) for name in benchmarks)
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    n = int(np.isfinite(summary.runs).sum())
    if n == 1:
        return f"{summary.mean:.1f}, n 1"
    half = float(student.ppf(0.975, n - 1)) * summary.sem
    return f"{summary.mean:.1f} ± {half:.1f}" + ("" if n == 5 else f", n {n}")


def schedule() -> str:
    body: dict[str, Any] = json.loads((HERE / "schedule.json").read_text())
    rows, dying = body["rows"], body["dying"]
    head = (
        "GPUs | fleets | runs each | longest first | shortest first | at work | with deaths | deaths | trained again"
    )
    lines = [
        f"{rows[0]['runs']:,} runs, planned by `kenyon sweep` and simulated. A worker needs {body['start']:g} s "
        "before",
        f"its first fleet. With deaths, it lives {dying['every'] / 3600:g} h on average, its fleet loses up to "
        f"{dying['saved']:g} s",
        f"of work and waits {dying['noticed']:g} s, and another worker comes after {dying['replaced']:g} s.",
        "",
        f"| {head} |",
        "|" + "---:|" * len(head.split("|")),
    ]
    for row in rows:
        times = {name: duration(seconds) for name, seconds in row["seconds"].items()}
        cells = (
            f"{row['workers']:,}",
            f"{row['fleets']:,}",
            f"up to {row['largest']}",
            times["longest_first"],
            times["shortest_first"],
            f"{100 * row['busy']:.0f}%",
            times["with_deaths"],
            f"{row['deaths']:g}",
            f"{100 * row['again']:.2f}%",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def settling() -> str:
    """Counts for the safety factor in use, and in brackets for the smallest one tested."""
    lines = [
        "| | tasks and runs | settled | after epochs | better later |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in ("settling-cpu", "settling-h200"):
        found = json.loads((HERE / f"{name}.json").read_text())
        by_method: dict[str, list[dict[str, Any]]] = {}
        for row in found["rows"]:
            by_method.setdefault(f"{row['benchmark']}, `{row['method']}`, {found['device']}", []).append(row)
        for label, rows in by_method.items():
            least, used = (pick(rows, key=lambda row: row["safety"]) for pick in (min, max))
            cells = [f"{used['settled']} ({least['settled']})"]
            cells += [f"{used['after_epochs']:.0f} ({least['after_epochs']:.0f})"]
            cells += [f"{used['better_later']} ({least['better_later']})"]
            lines.append(f"| {label} | {used['of']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ray() -> str:
    body: dict[str, Any] = json.loads((HERE / "sweep-ray.json").read_text())
    killed, same = body["killed"], body["same_numbers"] and body["same_weights"]
    return "\n".join(
        (
            f"{body['runs']} runs of digits, {body['epochs']} epochs a task, in {body['fleets']} fleets on a local "
            "Ray of 2 workers",
            f"(Ray {body['versions']['ray']}, {body['cores']} busy CPU cores). After {killed['seconds']:.0f} s one "
            "worker was killed with SIGKILL, while the",
            f"last state of its fleet stood at task {killed['state']['task']}, epoch {killed['state']['epoch']}. The "
            "sweep went on by itself and ended after",
            f"{duration(body['seconds_ray'])}; one process without Ray took {duration(body['seconds_one_process'])}. "
            f"All accuracies and all {body['weights']} files",
            f"of weights are {'the same' if same else 'NOT the same'}, bit for bit.",
        )
    )


def small_games() -> str:
    """Return a table of NAR, NP and NS, with a column per method."""
    found = measures(scores("cpu-games", "rl-mini"))
    rows = {"nar": "NAR: all games in the end", "np": "NP: each new game", "ns": "NS: what is left of it"}
    lines = [f"| | {' | '.join(found)} |", "|---|" + "---:|" * len(found)]
    for measure, said in rows.items():
        values = {name: getattr(mine, measure) for name, mine in found.items()}
        best = max(values, key=lambda name: values[name].mean)
        cells = (f"**{pm(value)}**" if name == best else pm(value) for name, value in values.items())
        lines.append(f"| {said} | {' | '.join(cells)} |")
    return "\n".join(lines)


def atari() -> str:
    """Return a table of raw scores in the end and right after learning, with random play, NAR, NP and NS."""
    results, random = scores("h200-atari", "atari"), json.loads((HERE / "atari-random.json").read_text())["games"]
    games = next(iter(results.values())).games
    r = reference([run.matrix for run in results["finetune"].complete_runs], games)
    lines = [f"| | random play | {' | '.join(results)} |", "|---|" + "---:|" * (1 + len(results))]
    for place, game in enumerate(games):
        score = "{:.1f}" if abs(random[game]["mean"]) < 10 else "{:,.0f}"
        chance = " ± ".join(score.format(random[game][value]) for value in ("mean", "sem"))
        pairs = [[one.mean for one in (m.final(place), m.learned(place)) if one] for m in results.values()]
        cells = (f"{score.format(final)} ({score.format(learned)})" for final, learned in pairs)
        lines.append(f"| {game} | {chance} | {' | '.join(cells)} |")
    for left_out in ((), ("Boxing",)):
        kept = [i for i, game in enumerate(games) if game not in left_out]
        ends = (np.mean([run.matrix[-1] for run in m.complete_runs], axis=0) for m in results.values())
        sums = (f"{float((end / r)[kept].sum()):.2f}" for end in ends)
        lines.append(f"| NAR{''.join(f' without {game}' for game in left_out)} | | {' | '.join(sums)} |")
    return "\n".join(lines)


def scores(folder: str, suite: str) -> dict[str, GameResult]:
    """Sort by the order of `kenyon list methods`."""
    there = (HERE / folder / suite / method / GameResult.FILE for method in METHODS)
    return {path.parent.name: GameResult.load(path) for path in there if path.is_file()}


BLOCKS = {
    "small": small,
    "published": lambda: published_sentence(methods("h200")),
    "small games": small_games,
    "atari": atari,
    "demo": lambda: results("cpu"),
    "overview": overview,
    "measured": lambda: results("h200"),
    "speed": speed,
    "steps": steps,
    "schedule": schedule,
    "ray": ray,
    "settling": settling,
    "settings": settings_markdown,
}


def rendered(text: str) -> str:
    """Return a page with every marked block made from its results."""
    for name, make in BLOCKS.items():
        if f"<!-- {name} -->" not in text:
            continue
        table = make()
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\1\n{table}\n\n\2", text, flags=re.DOTALL)
    return text


def draw() -> None:
    for name, (folder, shown) in PICTURES.items():
        found = methods(folder)[name]
        picture = DOCS / "pictures" / f"{name}.png"
        draw_results({method: found[method] for method in shown}, picture)
        picture.with_suffix(".svg").unlink()  # pages show the other
    beside = [published_view(methods("h200"))]
    draw_views(beside, DOCS / "pictures" / "published.png", suffixes=(".png",))
    results = scores("cpu-games", "rl-mini")
    games = next(iter(results.values())).games
    draw_views(fig6(measures(results), games), DOCS / "pictures" / "rl-mini.png", columns=2, suffixes=(".png",))


if __name__ == "__main__":
    draw()
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
