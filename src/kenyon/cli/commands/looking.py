"""Commands that look at what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kenyon.cli.options import DataDir, Device, Json, Results, path


def list_(
    what: Annotated[str, typer.Argument(help="benchmarks, methods or settings")] = "benchmarks",
    method: Annotated[str | None, typer.Option("--method", "-m", help="Only settings of this method.")] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", help="With the values that they have on this benchmark.")
    ] = None,
    json: Json = False,
) -> None:
    """List the benchmarks, the methods, or the settings that --set may change."""
    from kenyon.cli.listing import list_command

    list_command(what, method, benchmark, as_json=json)


def show(
    path: Results = Path("results"),
    json: Json = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="table, markdown, latex, csv (all accuracies or scores, one in a row) or json.",
        ),
    ] = "table",
    best: Annotated[bool, typer.Option("--best", help="Print the best of a LaTeX table in bold.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The same as --format markdown.")] = False,
) -> None:
    """Show saved results: the table, and for a single method its runs and settings."""
    from kenyon.cli.show import show_command

    show_command(path, form=format_, as_json=json, as_markdown=markdown, best=best)


def analyse(
    path: Results = Path("results"),
    what: Annotated[
        str,
        typer.Option(
            "--what",
            help="all, or some of pertask, diversity, expertise, discrepancy, flatness, change and gradcam.",
        ),
    ] = "all",
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", help="Only results of this benchmark; your own file.py for one of yours."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Only these methods, or points of a grid as `kenyon show` names them; your own file.py for yours.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change how: ANALYSIS.NAME=VALUE, e.g. flatness.directions=5. May be repeated."),
    ] = None,
    device: Device = "auto",
    data: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=path, help="Write into this folder instead, where the results' own cannot be written to."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look behind the accuracies of saved results: diversity, discrepancy, flatness, Grad-CAM and more.

    Writes METHOD/analysis/NAME.json with a picture beside each result, and BENCHMARK/analysis/NAME.json with methods
    side by side. What is there is not measured again.
    """
    from kenyon.cli.analyse import analyse_command

    analyse_command(
        path=path,
        benchmark=benchmark,
        methods=method,
        what=what,
        data=data,
        device=device,
        settings=set_ or [],
        out=out,
        as_json=json,
    )


def report(
    path: Results = Path("results"),
    out: Annotated[Path, typer.Option("--out", parser=path, help="The file to write.")] = Path("report.html"),
    apart: Annotated[
        bool, typer.Option("--apart", help="Label results of one method under different settings by what differs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make one HTML file of all results: tables, charts and the origin of every number. It opens offline.

    Analyses beside a result, METHOD/analysis/NAME.json, are shown with it.
    """
    from kenyon.cli.report import report_command

    report_command(path, out, apart=apart, as_json=json)


def verify(
    path: Annotated[Path, typer.Argument(help="A results folder, or a file that Kenyon has written.")] = Path(
        "results"
    ),
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Take this one file as it is, after an edit that was meant."),
    ] = False,
    json: Json = False,
) -> None:
    """Compare files with their checksums: which are whole, changed or missing.

    The exit code is 1 where a file has changed, is missing or cannot be read.
    """
    from kenyon.cli.verify import verify_command

    verify_command(path, accepting=accept, as_json=json)


def watch(
    result: Annotated[Path, typer.Argument(parser=path, help="The folder of a method's scores, OUT/SUITE/METHOD.")],
    game: Annotated[
        str | None,
        typer.Option("--game", help="Which game; otherwise the last that was learned."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the run that plays.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", parser=path, help="The GIF to write; otherwise GAME-SEED.gif beside the scores."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="How much of the episode to show.")] = 60.0,
) -> None:
    """Watch a trained agent play: one episode as a GIF."""
    from kenyon.cli.games import watch_command

    watch_command(result, game=game, seed=seed, out=out, seconds=seconds)
