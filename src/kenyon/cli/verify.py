"""`kenyon verify`: compare files with their checksums."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from kenyon.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from kenyon.report.verify import Verified

FEW = 24  # files that are all listed; of more only those that are neither whole nor unsealed


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
    from kenyon.cli.consoles import stdout, tell_json
    from kenyon.report.verify import BAD, State
    from kenyon.report.verify import accept as accept_file
    from kenyon.report.verify import verify as verify_files

    found = [accept_file(path)] if accept else verify_files(path)
    counts = Counter(one.state for one in found)
    if json:
        files = [{"path": str(one.path), "state": one.state, "why": one.why} for one in found]
        tell_json({"counts": {state: counts[state] for state in get_args(State)}, "files": files})
    else:
        console = stdout()
        rows = found if len(found) <= FEW else [one for one in found if one.state not in ("whole", "unsealed")]
        if rows:
            console.print(_table(rows, path))
        numbers = [f"{counts[state]:,} {state}" for state in get_args(State) if counts[state] or state in BAD]
        console.print(f"{', '.join(numbers)}.", soft_wrap=True)
    if any(counts[state] for state in BAD):
        sys.exit(1)


def _table(rows: list[Verified], path: Path) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("why", overflow="fold")
    for one in rows:
        name = one.path.relative_to(path).as_posix() if one.path != path and path.is_dir() else one.path.name
        table.add_row(name, one.state, one.why)
    return table
