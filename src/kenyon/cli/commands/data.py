"""Commands about datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from kenyon.cli.options import DataDir, Json


def get(
    name: Annotated[str, typer.Argument(help="See `kenyon data list`.")],
    data: DataDir = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Another server for the same file."),
    ] = None,
) -> None:
    """Download a public dataset: resumes where it stopped, and checks what arrived."""
    from kenyon.cli.data import get_command

    get_command(name, data, url)


def list_data(data: DataDir = None, json: Json = False) -> None:
    """Say which datasets are there, and where."""
    from kenyon.cli.data import list_command

    list_command(data, as_json=json)
