"""Rows of numbers in pieces that a CPU's cache holds, side by side on its cores."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kenyon.threads import side_by_side

PIECE = 2**18  # numbers of all rows: as many as the cache of a CPU's core holds, with what moves them


def piece_by_piece(rows: Tensor, work: Callable[[slice], None]) -> None:
    """Do to the columns of rows (R, P) what treats every number by itself: on a CPU side by side, to so few at a time
    that one operation after another finds them in the cache, and memory is passed over once; elsewhere to all.
    """
    parts = pieces(rows)
    if len(parts) == 1:
        work(parts[0])
    else:
        side_by_side(work, parts)


def pieces(rows: Tensor) -> list[slice]:
    """The columns of rows (R, P), one part after another."""
    R, P = rows.shape
    each = max(1, PIECE // R) if rows.device.type == "cpu" else max(1, P)
    return [slice(first, min(first + each, P)) for first in range(0, P, each)]
