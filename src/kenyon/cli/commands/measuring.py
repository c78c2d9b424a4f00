"""Commands that make the paper's figures and measure speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kenyon.cli.options import DataDir, Device, Json, path


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
    from kenyon.cli.reproduce import reproduce_command

    reproduce_command(
        names=names or [],
        scale=scale,
        benchmarks=benchmark,
        seeds=seeds,
        out=out,
        data=data,
        device=device,
        train=train,
        listing=list_,
        as_json=json,
    )


def bench(
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", parser=path, help="Folder for bench.json and its figure, or a file.json.")
    ] = Path("results/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds, to see that it works.")] = False,
    json: Json = False,
) -> None:
    """Measure the speed on this device: against what it could do, and against plain PyTorch.

    Under two minutes on two CPU cores, under three on a GPU. Ctrl-C keeps what was measured.
    """
    from kenyon.cli.bench import bench_command

    bench_command(device=device, out=out, quick=quick, as_json=json)
