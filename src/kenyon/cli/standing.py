"""How a sweep stands, for a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kenyon.report.tables import duration
from kenyon.sweep.status import AT_WORK, MISSING, WAITING, Line, Status

SHOWN = 8  # fleets of a kind


def standing(status: Status) -> Group:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name, right in (("fleet", False), ("runs", True), ("", False), ("done", True), ("time", True), ("", False)):
        table.add_column(name, justify="right" if right else "left")
    for state in (AT_WORK, MISSING, WAITING):
        some = [line for line in status.lines if line.state == state]
        for line in some[:SHOWN]:
            table.add_row(*_cells(line))
        if len(some) > SHOWN:
            table.add_row(f"and {len(some) - SHOWN} more", "", state, style="dim")
    return Group(Text(standing_line(status), style="bold"), *([table] if table.row_count else []))


def standing_line(status: Status) -> str:
    """All in one line."""
    parts = [f"{status.about}: {status.finished:,} of {status.runs:,} runs finished"]
    if status.count(AT_WORK):
        parts.append(f"{_count(status.count(AT_WORK), 'fleet')} at work, {status.count(WAITING)} waiting")
    elif status.count(WAITING):
        parts.append(f"{_count(status.count(WAITING), 'fleet')} waiting, nobody at work")
    if status.count(MISSING):
        parts.append(f"{_count(status.count(MISSING), 'fleet')} with missing runs")
    if status.left is not None:
        likely, low, high = map(duration, status.left)
        parts.append(f"about {likely} left ({low} to {high})")
    return "; ".join(parts)


def _cells(line: Line) -> list[str | Text]:
    unfinished = line.state in (AT_WORK, WAITING)
    share = f"{100 * line.share:.0f}%" if line.state == AT_WORK or (unfinished and line.share) else ""
    time = f"~{duration(line.seconds)}" if unfinished else ""
    said = Text(line.why or line.where)  # as they are: a point's label has brackets too
    return [Text(line.label), str(line.runs), line.state, share, time, said]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
