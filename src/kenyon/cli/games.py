"""`kenyon run` on a suite of games: how it shows itself, and what it tells in the end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kenyon.cli.consoles import stderr, stdout, tell_json
from kenyon.cli.watched import watched
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.incomplete import Incomplete, none_finite, told_of_diverged
from kenyon.experiments.results import plain
from kenyon.experiments.spec import parse_settings
from kenyon.experiments.store import files_below
from kenyon.methods import find_method
from kenyon.metrics import Summary, rounded
from kenyon.report.plots import draw_views
from kenyon.report.tables import diverged, duration, pm, run_count
from kenyon.rl.config import GamesConfig, settings
from kenyon.rl.play import SECONDS, policy_of, watch
from kenyon.rl.results import GameResult, measures, unmeasured
from kenyon.rl.runner import execute_games, plan_games
from kenyon.rl.scores import Measured, fig6
from kenyon.rl.suites import find_arena
from kenyon.utils.text import counted

__all__ = [
    "SECONDS",
    "draw_scores",
    "run_games_command",
    "scores_json",
    "scores_table",
    "tell_scores",
    "watch_command",
]
METHODS, SEEDS = ("finetune", "ewc", "caf-ewc"), 3  # where nobody says
ABREAST = 5  # columns of scores that 80 characters hold


def run_games_command(
    *,
    suite: str,
    methods: Sequence[str] | None,
    seeds: int | Sequence[int] | None,
    games: str | None,
    steps: int | None,
    pairs: Sequence[str],
    device: str,
    out: Path,
    fleet: int | None,
    as_json: bool,
) -> None:
    names = list(methods or METHODS)
    for name in names:
        find_method(name)
    overrides = parse_settings(pairs, names, settings)
    if steps is not None:
        if "steps" in overrides:
            raise ConfigError("steps is given twice: with --steps and with --set.")
        overrides["steps"] = steps
    chosen = None if games is None else [game.strip() for game in games.split(",") if game.strip()]
    planned = plan_games(
        suite,
        names,
        SEEDS if seeds is None else seeds,
        games=chosen,
        overrides=overrides,
        device=device,
        out=out,
        fleet=fleet,
    )
    told, missing = stderr(), None
    with watched(told, "update") as (progress, stopping):
        try:
            results = execute_games(planned, progress=progress, stop=stopping)
        except Incomplete as incomplete:  # told in the end, after what there is
            results, missing = incomplete.results, incomplete
    tell_scores(results, out, str(out / suite), told if as_json else stdout())
    draw_scores(results, out / suite / "figure.png", told)
    if as_json and results:
        tell_json(plain(scores_json(results)))
    if missing:
        raise missing


def tell_scores(results: Mapping[str, GameResult], out: Path, saved: str, spoken: Console) -> None:
    """A table, what did not stay finite with a command that may, and where the scores are saved."""
    if not results:
        return
    spoken.print(scores_table(results))
    for name, result in results.items():
        if said := told_of_diverged(name, result, GamesConfig.from_dict, out):
            spoken.print(said, soft_wrap=True)
    each = "a method and point" if any(result.point for result in results.values()) else "a method"
    spoken.print(f"Saved in {saved} ({GameResult.FILE} {each}).", soft_wrap=True)


def draw_scores(results: Mapping[str, GameResult], path: Path, told: Console) -> None:
    """The picture of a suite's scores, where fine-tuning is among them."""
    if results and not any(result.complete_runs for result in results.values()):
        raise none_finite(next(iter(results.values())).benchmark)
    if found := measures(results):
        views = fig6(found, next(iter(results.values())).games)
        draw_views(views, path, columns=4, suffixes=(".png", ".svg"))
        told.print(f"Drawn in {path}.", soft_wrap=True)


def scores_table(results: Mapping[str, GameResult], suite: str | None = None) -> Group:
    """A column a method or point, a row a game: the raw score in the end, and when the game had just been learned.
    Columns that have no room beside the others follow below.
    """
    first, found, labels = next(iter(results.values())), measures(results), list(results)
    parts = -(-len(labels) // ABREAST)
    ends = [len(labels) * part // parts for part in range(parts + 1)]
    tables = [_columns({label: results[label] for label in labels[a:b]}, found) for a, b in pairwise(ends)]
    most = max(len(result.complete_runs) for result in results.values())
    counts = f"{counted(len(first.games), 'game')}, {counted(most, 'run')}"
    tables[0].title = f"{suite or first.benchmark}: {counts}"
    said = ["Mean raw score of an episode in the end; in brackets, when the game had just been learned."]
    if found:
        said.append("NAR, NP, NS: all games in the end, further games learned, and what is left, by fine-tuning.")
    tables[-1].caption = " ".join([*said, *unmeasured(results), *diverged(results)])
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
        mine = (getattr(found[label], name) if label in found else None for label in results)
        table.add_row(name.upper(), *(pm(one) if one else "-" for one in mine))
    if len({(len(r.runs), len(r.complete_runs)) for r in results.values()}) > 1 or diverged(results):
        table.add_row("runs", *(run_count(r) for r in results.values()))
    table.add_row("time", *(duration(r.seconds) for r in results.values()))
    table.add_row("steps/s", *(f"{_speed(r):,.0f}" for r in results.values()))
    return table


def _speed(result: GameResult) -> float:
    return sum(f.steps_per_second * f.seconds for f in result.fleets) / max(result.seconds, 1e-9)


def _score(found: Summary | None) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.1f}" if abs(found.mean) < 1000 else f"{found.mean:,.0f}"


def scores_json(results: Mapping[str, GameResult]) -> dict[str, Any]:
    """NAR, NP and NS are null where fine-tuning is not among them, or scored in no run of some game."""
    first, found = next(iter(results.values())), measures(results)

    def rates(label: str) -> dict[str, Any]:
        return {name: rounded(getattr(found.get(label), name, None)) for name in ("nar", "np", "ns")}

    return {
        "benchmark": first.benchmark,
        "games": first.games,
        "methods": {
            label: result.summary() | rates(label) | {"steps_per_second": round(_speed(result), 1)} | result.told()
            for label, result in results.items()
        },
        "device": ", ".join(sorted({f.device for r in results.values() for f in r.fleets})),
    }


def _agents_below(folder: Path, most: int = 8) -> str:
    """Which folders below can be meant: those of methods, and of points of a grid."""
    found = [path.parent.relative_to(folder).as_posix() for path in files_below(folder, GameResult.FILE)]
    if not found:
        return "Give the folder of a method below a suite of games, OUT/SUITE/METHOD."
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return f"Name one of those below it: {', '.join(found[:most])}{rest}. For example {folder / found[0]}."


def watch_command(result: Path, *, game: str | None, seed: int, out: Path | None, seconds: float) -> None:
    """One episode of a trained run as a GIF."""
    folder = result.parent if result.is_file() else result
    if not (folder / GameResult.FILE).is_file():
        raise ResultsError(f"{folder} has no trained agents itself. {_agents_below(folder)}")
    policy = policy_of(folder, seed, game)
    suite = find_arena(GameResult.load(folder / GameResult.FILE).benchmark).suite
    path = out or folder / f"{policy.game}-{seed}.gif"
    seen = watch(suite, policy.game, policy.act, path, seed=seed, seconds=seconds)
    stdout().print(
        f"{policy.game}: score {seen.score:g} in {seen.steps:,} steps; {seen.frames:,} frames in {path}.",
        soft_wrap=True,
    )
