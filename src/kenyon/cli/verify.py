"""`kenyon verify`: which files are whole."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import get_args

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kenyon.cli.consoles import stdout, tell_json
from kenyon.report.verify import BAD, State, Verified, accept, verify

FEW = 24  # files of which each has a row; of more only those that are neither whole nor unsealed


def verify_command(path: Path, *, accepting: bool, as_json: bool) -> None:
    found = [accept(path)] if accepting else verify(path)
    counts = Counter(one.state for one in found)
    if as_json:
        files = [{"path": str(one.path), "state": one.state, "why": one.why} for one in found]
        tell_json({"counts": {state: counts[state] for state in get_args(State)}, "files": files})
    else:
        console = stdout()
        rows = found if len(found) <= FEW else [one for one in found if one.state not in ("whole", "unsealed")]
        if rows:
            console.print(_table(rows, path))
        said = [f"{counts[state]:,} {state}" for state in get_args(State) if counts[state] or state in BAD]
        console.print(f"{', '.join(said)}.", soft_wrap=True)
    if any(counts[state] for state in BAD):
        sys.exit(1)


def _table(rows: list[Verified], path: Path) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("why", overflow="fold")
    for one in rows:
        name = one.path.relative_to(path).as_posix() if one.path != path and path.is_dir() else one.path.name
        table.add_row(name, one.state, one.why)
    return table
