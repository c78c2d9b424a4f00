"""Tables that narrow terminals hold too."""

from __future__ import annotations

from copy import copy

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


class FittingTable(Table):
    """A table that leaves out columns, and says which, where they would leave no room for the names of its rows."""

    LEAST_FIRST = ("time", "runs", "Cos", "FWT", "BWT", "published")
    NAME = 12  # characters a name may ask for; a longer one goes on in the next line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown, left_out = copy(self), []
        for title in self.LEAST_FIRST:
            if self._least_width(shown, console, options) <= options.max_width:
                break
            if any(column.header == title for column in shown.columns):
                shown.columns = [column for column in shown.columns if column.header != title]
                left_out.append(title)
        if left_out:
            unseen = f"Left out, for want of room: {', '.join(left_out)}."
            shown.caption = f"{self.caption} {unseen}" if self.caption else unseen
        yield from Table.__rich_console__(shown, console, options)

    def _least_width(self, table: Table, console: Console, options: ConsoleOptions) -> int:
        wide = options.update(max_width=10_000)
        first, *others = (
            max(Measurement.get(console, wide, cell).maximum for cell in (column.header, *column.cells))
            for column in table.columns
        )
        return min(first, self.NAME) + sum(others) + len(others) + 2  # spaces between them and at both edges


class Label:
    """A point's name in a table: where there is little room beside the numbers, a line a value."""

    def __init__(self, text: str, beside: int) -> None:
        self.whole, self.lines, self.beside = Text(text), Text(text.replace(",", ",\n ")), beside

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        room = options.max_width - self.beside
        return Measurement.get(console, options, self.whole if len(self.whole) <= room else self.lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.whole if len(self.whole) <= options.max_width else self.lines
