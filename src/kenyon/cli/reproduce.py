"""`kenyon reproduce`: figures and tables of the paper, from the runs that they need."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kenyon.cli.options import DataDir, Device, Json, path

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kenyon.paper.reproduce import Unmade, Written
    from kenyon.paper.reproduce.figure import Claim, Comparison

MOST_DIGITS = 4  # after the decimal point


def reproduce_(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Figures and tables, such as fig2c table5, or all."),
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke, quick or paper.")] = "smoke",
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", help="Only these, with commas, of the benchmarks that a figure has."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="At most so many runs of each variant, fewer than published.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", parser=path, help="Results folder: runs that it has are used.")
    ] = Path("results"),
    data: DataDir = None,
    device: Device = "auto",
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train what is missing, or say which command would.")
    ] = True,
    list_: Annotated[
        bool, typer.Option("--list", help="Say what there is, what it needs and what it costs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make figures and tables of the paper: data, pictures, and published beside measured.

    Written to OUT/figures/SCALE/NAME.json, .md, .png, .svg and .pdf.
    """
    from kenyon.cli.consoles import stderr, stdout, tell_json
    from kenyon.cli.progress import watched
    from kenyon.experiments.runner import execute
    from kenyon.paper.reproduce import Unmade, reproduce

    names = names or []
    if list_ or not names:
        _list(json)
        return
    notes = stderr()
    output = notes if json else stdout()
    unmade: Unmade | None = None
    with watched(notes) as (progress, stopping):
        try:
            written = reproduce(
                names,
                scale=scale,
                benchmarks=None if benchmark is None else [part for part in benchmark.split(",") if part],
                seeds=seeds,
                out=out,
                data=data,
                device=device,
                train=train,
                progress=progress,
                play=lambda plan: execute(plan, progress=progress, stop=stopping),
                told=lambda text: notes.print(text, style="bold"),
                stop=stopping,
            )
        except Unmade as error:
            written, unmade = error.written, error
    for one in written:
        _show(one, output)
    if json:
        tell_json({"written": {one.name: str(one.data) for one in written}})
    if unmade is not None:
        raise unmade


def _show(one: Written, console: Console) -> None:
    from rich.padding import Padding

    from kenyon.paper.reproduce.figure import DECIDED

    figure = one.figure
    console.print(f"{one.name}: {figure.title}", style="bold")
    if figure.comparisons:
        console.print(_numbers(figure.comparisons))
    if figure.claims:
        console.print(_claims(figure.claims))
        if any(claim.verdict == "undecided" for claim in figure.claims):
            console.print(Padding(DECIDED, (0, 0, 0, 1)), style="dim")
    for note in figure.notes:
        console.print(Padding(note, (0, 0, 0, 1)))
    where = f"{one.data.with_suffix('')}.*"
    console.print(f"Data, table and pictures: {where}", soft_wrap=True)


def _numbers(comparisons: Sequence[Comparison]) -> Table:
    """Return our numbers, and those of the paper where it has any."""
    from rich.table import Table

    with_paper = any(one.published is not None for one in comparisons)
    names = ["", "measured", "runs", *(["published", "difference", "in SE"] if with_paper else [])]
    table = Table(*names, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for one in comparisons:
        name, published, mean, sem, runs, difference, errors = one.row()
        compared = [_text(published, ".2f"), _text(difference, "+.2f"), _text(errors, "+.1f")] if with_paper else []
        table.add_row(str(name), _measured(mean, sem), _text(runs, ".0f"), *compared)
    return table


def _measured(mean: float | str | None, sem: float | str | None) -> str:
    """Return mean and standard error, with two digits of the standard error."""
    if type(mean) is not float or type(sem) is not float or not sem > 0:
        return _text(mean, ".4g") + ("" if sem is None else f" ± {_text(sem, '.2g')}")
    digits = min(max(1 - floor(log10(sem)), 0), MOST_DIGITS)
    return f"{mean:.{digits}f} ± {sem:.{digits}f}"


def _text(value: str | float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _claims(claims: Sequence[Claim]) -> Table:
    from rich.table import Table

    from kenyon.paper.reproduce.page import MARKS

    table = Table("the paper says", "difference", "", box=None, padding=(0, 2, 0, 0))
    table.columns[1].justify, table.columns[1].no_wrap = "right", True
    for claim in claims:
        table.add_row(claim.text, claim.found, MARKS[claim.verdict])
    return table


def _list(as_json: bool) -> None:
    from rich.table import Table

    from kenyon.cli.consoles import stdout, tell_json
    from kenyon.experiments.results import plain
    from kenyon.paper.reproduce import REPRODUCTIONS, SCALES

    if as_json:
        found = {r.name: {"shows": r.shows, "cost": r.cost, "needs": _needs(r.name)} for r in REPRODUCTIONS.values()}
        tell_json(plain({"reproductions": found}))
        return
    console = stdout()
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
        console.print(f"--scale {scale.name}: {scale.about}.")


def _needs(name: str) -> str:
    from kenyon.paper.reproduce import REPRODUCTIONS, SCALES

    wanted, free = REPRODUCTIONS[name].wanted(SCALES["paper"]), REPRODUCTIONS[name].cost == "none"
    if not wanted:
        return "nothing" if free else "runs of games"
    runs = sum(len(one.variants) * one.seeds for one in wanted)
    return f"{runs} runs of {', '.join(one.benchmark for one in wanted)}"
