"""`kenyon reproduce`: figures and tables of the paper, from the runs that they need."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kenyon.cli.watched import watched
from kenyon.experiments.results import plain
from kenyon.reproduce import REPRODUCTIONS, SCALES, Written, reproduce
from kenyon.reproduce.figure import COLUMNS
from kenyon.rl.runner import execute_games


def reproduce_command(
    *,
    names: list[str],
    scale: str,
    benchmarks: str | None,
    seeds: int | None,
    out: Path,
    data: Path | None,
    device: str,
    train: bool,
    listing: bool,
    as_json: bool,
) -> None:
    if listing or not names:
        _list(as_json)
        return
    told = Console(stderr=True)
    spoken = told if as_json else Console()
    with watched(told) as (progress, stopping):
        written = reproduce(
            names,
            scale=scale,
            benchmarks=None if benchmarks is None else [part for part in benchmarks.split(",") if part],
            seeds=seeds,
            out=out,
            data=data,
            device=device,
            train=train,
            progress=progress,
            play=lambda plan: execute_games(plan, progress=progress, stop=stopping),
            told=lambda text: told.print(text, style="bold"),
            stop=stopping,
        )
    for one in written:
        _tell(one, spoken)
    if as_json:
        print(json.dumps([{"name": one.name, "data": str(one.data)} for one in written]))


def _tell(one: Written, console: Console) -> None:
    figure = one.figure
    console.print(f"{one.name}: {figure.title}", style="bold")
    if figure.comparisons:
        table = Table(*COLUMNS, box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for comparison in figure.comparisons:
            name, *values = comparison.row()
            shown = ["-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
            table.add_row(str(name), *shown)
        console.print(table)
    for claim in figure.claims:
        console.print(f"  {claim.verdict:9} {claim.text} ({claim.found})", highlight=False)
    for note in figure.notes:
        console.print(f"  {note}", highlight=False)
    console.print(f"Data, table and pictures: {one.data.with_suffix('')}.*", highlight=False, soft_wrap=True)


def _list(as_json: bool) -> None:
    if as_json:
        body = [
            {"name": r.name, "shows": r.shows, "cost": r.cost, "needs": _needs(r.name)}
            for r in REPRODUCTIONS.values()
        ]
        print(json.dumps(plain(body)))
        return
    console = Console()
    table = Table(
        "name",
        "shows",
        "needs (at paper scale)",
        "time, on one H200",
        box=None,
        pad_edge=False,
        title_justify="left",
    )
    for r in REPRODUCTIONS.values():
        table.add_row(r.name, r.shows, _needs(r.name), r.cost)
    console.print(table)
    for scale in SCALES.values():
        console.print(f"--scale {scale.name}: {scale.about}.", highlight=False)


def _needs(name: str) -> str:
    wanted, free = REPRODUCTIONS[name].wanted(SCALES["paper"]), REPRODUCTIONS[name].cost == "none"
    if not wanted:
        return "nothing" if free else "runs of games"
    runs = sum(len(one.variants) * one.seeds for one in wanted)
    return f"{runs} runs of {', '.join(one.benchmark for one in wanted)}"
