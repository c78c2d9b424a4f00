"""Results of images and games in the terminal: tables, JSON and pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kenyon.experiments.compare import load_results, measures, unmeasured
from kenyon.experiments.results import GameResult, Result, ResultBase, plain
from kenyon.experiments.runner import REFERENCE
from kenyon.experiments.scheduler import diverged_message, none_finite
from kenyon.metrics import Summary, rounded
from kenyon.report.figures import draw_results
from kenyon.report.plots import draw_views
from kenyon.report.tables import diverged, duration, pm, results_json, results_tables, run_count
from kenyon.rl.scores import Measured, fig6
from kenyon.utils.text import counted

ABREAST = 5  # columns of scores that fit into 80 characters


def of_games(results: Mapping[str, ResultBase]) -> bool:
    return any(type(result) is GameResult for result in results.values())


def show_results(results: Mapping[str, Any], out: Path, saved: str, console: Console) -> None:
    """Print a table, what did not stay finite with a command that may, and where the results are saved."""
    if not results:
        return
    if of_games(results):
        console.print(scores_table(results))
    else:
        for table in results_tables(dict(results)):
            console.print(table)
            console.print()
    for name, result in results.items():
        if message := diverged_message(name, result, out):
            console.print(message, soft_wrap=True)
    each = "a method and point" if any(result.point for result in results.values()) else "a method"
    file = next(iter(results.values())).FILE
    console.print(f"Saved in {saved} ({file} {each}).", soft_wrap=True)


def bodies_of(
    found: Mapping[str, Mapping[str, Any]], seconds: float, device: torch.device | None = None
) -> dict[str, Any]:
    """Return results by benchmark as JSON has them. `device`: that of the results where none is given."""
    bodies = {}
    for name, results in found.items():
        if of_games(results):
            bodies[name] = scores_json(results)
        elif results:
            where = devices_of(results)
            if device is not None:
                where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            bodies[name] = results_json(dict(results), seconds, where)
    body: dict[str, Any] = plain(bodies)
    return body


def devices_of(results: Mapping[str, ResultBase]) -> str:
    return ", ".join(sorted({fleet.device for result in results.values() for fleet in result.fleets}))


def draw(results: Mapping[str, Any], path: Path, notes: Console, name: str) -> None:
    """Draw the results of a benchmark, or the scores of a suite if fine-tuning is among them."""
    if not results:
        return
    if not any(result.complete_runs for result in results.values()):
        raise none_finite(name)
    if of_games(results):
        if found := measures(results):
            views = fig6(found, next(iter(results.values())).games)
            draw_views(views, path, columns=4, suffixes=(".png", ".svg"))
            notes.print(f"Drawn in {path}.", soft_wrap=True)
        return
    others = _others(name, results, path.parent)
    figure = draw_results(others | dict(results), path)
    also = f", with {', '.join(others)}, which {'was' if len(others) == 1 else 'were'} there" if others else ""
    notes.print(f"Drawn in {figure}{also}.", soft_wrap=True)


def _others(name: str, results: Mapping[str, Result], folder: Path) -> dict[str, Result]:
    """Return results of other methods in the folder that have the same settings, for the same picture."""
    asked = {REFERENCE, *(result.method for result in results.values())}
    there = load_results(folder).get(name, {})
    same = {label: r for label, r in there.items() if label == r.method}  # labels of others name what differs
    if not all(method in same for method in asked - {REFERENCE}):
        return {}
    return {label: r for label, r in same.items() if label not in asked and r.complete_runs}


# ------------------------------------------------------------------------------------------------- scores of games


def scores_table(results: Mapping[str, GameResult], suite: str | None = None) -> Group:
    """Return a table with a column for each method or point and a row for each game: the raw score in the end, and
    directly after learning. Columns that do not fit follow below.
    """
    first, found, labels = next(iter(results.values())), measures(results), list(results)
    parts = -(-len(labels) // ABREAST)
    ends = [len(labels) * part // parts for part in range(parts + 1)]
    tables = [_columns({label: results[label] for label in labels[a:b]}, found) for a, b in pairwise(ends)]
    most = max(len(result.complete_runs) for result in results.values())
    counts = f"{counted(len(first.games), 'game')}, {counted(most, 'run')}"
    tables[0].title = f"{suite or first.benchmark}: {counts}"
    notes = ["Mean raw score of an episode in the end; in brackets, when the game had just been learned."]
    if found:
        notes.append("NAR, NP, NS: all games in the end, further games learned, and what is left, by fine-tuning.")
    tables[-1].caption = " ".join([*notes, *unmeasured(results), *diverged(results)])
    return Group(*tables)


def _columns(results: Mapping[str, GameResult], found: Mapping[str, Measured]) -> Table:
    table = Table(title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    for label in results:
        table.add_column(Text(re.sub(r"(?=\[)|(?<=[,=])", "\n", label)), justify="right", overflow="fold")
    games = next(iter(results.values())).games
    for number, game in enumerate(games):
        cells = (f"{_score(r.final(number))} ({_score(r.learned(number))})" for r in results.values())
        table.add_row(game, *cells, end_section=number == len(games) - 1)
    for name in ("nar", "np", "ns") if found else ():
        values = (getattr(found[label], name) if label in found else None for label in results)
        table.add_row(name.upper(), *(pm(value) if value else "-" for value in values))
    if len({(len(r.runs), len(r.complete_runs)) for r in results.values()}) > 1 or diverged(results):
        table.add_row("runs", *(run_count(r) for r in results.values()))
    table.add_row("time", *(duration(r.seconds) for r in results.values()))
    table.add_row("steps/s", *(f"{r.steps_per_second:,.0f}" for r in results.values()))
    return table


def _score(found: Summary | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.1f}" if abs(found.mean) < 1000 else f"{found.mean:,.0f}"


def scores_json(results: Mapping[str, GameResult]) -> dict[str, Any]:
    """Return scores as JSON has them. NAR, NP and NS are null without fine-tuning that scored in every game."""
    first, found = next(iter(results.values())), measures(results)

    def rates(label: str) -> dict[str, Any]:
        return {name: rounded(getattr(found.get(label), name, None)) for name in ("nar", "np", "ns")}

    return {
        "benchmark": first.benchmark,
        "games": first.games,
        "methods": {
            label: result.summary()
            | rates(label)
            | {"steps_per_second": round(result.steps_per_second, 1)}
            | result.told()
            for label, result in results.items()
        },
        "device": devices_of(results),
    }
