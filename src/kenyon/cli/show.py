"""`kenyon show`: what a results folder holds."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kenyon.cli.games import scores_json, scores_table
from kenyon.errors import ConfigError
from kenyon.experiments.results import Result, plain
from kenyon.experiments.runner import REFERENCE
from kenyon.experiments.store import files_below, result_files
from kenyon.metrics import Array
from kenyon.report.markdown import results_markdown
from kenyon.report.tables import duration, results_json, results_table
from kenyon.rl.results import FILE, GameResult


def show_command(path: Path, *, as_json: bool, as_markdown: bool) -> None:
    played = load_scores(path)
    results = {} if played and not _has_images(path) else load_results(path)
    if as_markdown:
        if not results:
            raise ConfigError("--markdown is for accuracies; these are scores of games. Leave it out or use --json.")
        print(results_markdown(results))
        return
    if as_json:
        body = {suite: scores_json(scores) for suite, scores in played.items()}
        for name, methods in results.items():
            device = ", ".join(sorted({f.device for r in methods.values() for f in r.fleets}))
            body[name] = results_json(methods, sum(r.seconds for r in methods.values()), device)
        print(json.dumps(plain(body), allow_nan=False))
        return
    console = Console()
    for scores in played.values():
        console.print(scores_table(scores))
    for methods in results.values():
        # The reference for FWT has no average accuracy worth showing, unless it is all there is.
        shown = {name: r for name, r in methods.items() if r.method != REFERENCE} or methods
        console.print(results_table(shown))
    if len(results) == 1 and len(methods := next(iter(results.values()))) == 1:
        _details(console, next(iter(methods.values())))


def load_scores(path: Path) -> dict[str, dict[str, GameResult]]:
    """All scores of games at or below a path: suite -> method -> result."""
    files = [path] if path.name == FILE else files_below(path, FILE) if path.is_dir() else []
    found: dict[str, dict[str, GameResult]] = {}
    for result in map(GameResult.load, files):
        found.setdefault(result.suite, {})[result.method] = result
    return found


def _has_images(path: Path) -> bool:
    return path.name != FILE and (path.is_file() or bool(files_below(path, "result.json")))


def load_results(path: Path) -> dict[str, dict[str, Result]]:
    """All results at or below a path: benchmark -> label -> result, points in the order of their values."""
    found: dict[str, dict[str, Result]] = {}
    results = sorted(
        map(Result.load, result_files(path)), key=lambda r: (r.benchmark, r.method, list(r.point.items()))
    )
    # Runs that settings were chosen by are no results of a benchmark: shown only where there is nothing else.
    for result in [r for r in results if "search" not in r.config] or results:
        chosen_by = result.config.get("search")
        title = f"{result.benchmark} ({chosen_by['name']} search)" if chosen_by else result.benchmark
        found.setdefault(title, {})[result.label] = result
    return found


def _details(console: Console, result: Result) -> None:
    settings = {k: v for part in ("training", "architecture", "hyper") for k, v in result.config[part].items()}
    console.print("Settings: " + ", ".join(f"{k}={v}" for k, v in settings.items()), highlight=False)
    for fleet in result.fleets:
        versions = ", ".join(f"{k} {v}" for k, v in fleet.versions.items())
        beside = f", their share of {fleet.together} runs trained together" if fleet.together else ""
        exact = ", deterministic" if fleet.deterministic else ""
        console.print(
            f"Seeds {', '.join(map(str, fleet.seeds))}: {duration(fleet.seconds)} on {fleet.device} "
            f"({fleet.precision}{exact}){beside}, {fleet.finished}; {versions}",
            highlight=False,
        )
    runs = result.complete_runs
    if not runs:
        return
    mean = result.accuracy.mean(0)
    rows = {str(t + 1) if len(mean) > 1 else "all": row for t, row in enumerate(mean)}
    console.print(_by_task(f"Accuracy % of task (column) after task (row), mean of {len(runs)} runs", rows, "{:.0f}"))
    if result.config["architecture"]["learners"] > 1:
        own = {f"learner {k + 1}": column for k, column in enumerate(result.expertise[0].T)}
        title = f"Expertise of the learners in the end, seed {runs[0].seed}: accuracy minus the learners' mean"
        console.print(_by_task(title, own, "{:+.0f}"))


def _by_task(title: str, rows: dict[str, Array], form: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for t in range(len(next(iter(rows.values())))):
        table.add_column(str(t + 1), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(form.format(value) for value in row))
    return table
