"""Passes over rows of numbers: taking them in another order, and adding up what many blocks of threads left.

Triton where there is a GPU; the plain versions say what is meant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.kernels import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

BLOCK = 1024
# Of a tile of pieces that are added up at once: many columns of few pieces, or few columns of many.
FLAT, TALL = (256, 8), (32, 64)


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda


def taken_plain(rows: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """rows (R, N) at `places` (M,): (R, M). A place of -1 gives 0."""
    found = rows.index_select(1, places.clamp(min=0))
    return torch.where(places >= 0, found, 0.0).to(dtype)


def taken(rows: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    if not available(rows):
        return taken_plain(rows, places, dtype)
    out = torch.empty((len(rows), len(places)), dtype=dtype, device=rows.device)
    grid = (-(-len(places) // BLOCK), len(rows))
    _take[grid](rows, places, out, rows.stride(0), len(places), BLOCK, num_warps=4)
    return out


def totals_plain(pieces: list[Tensor]) -> Tensor:
    """Each piece (R, S, N) summed over S, side by side: (R, sum of N)."""
    return torch.cat([piece.sum(1) for piece in pieces], dim=1)


class Totals:
    """The same for pieces that lie behind one another in one buffer, in a single pass."""

    def __init__(self, runs: int, shapes: list[tuple[int, int]], device: torch.device, together: int = 1) -> None:
        """`shapes`: (S, N) of each piece. So many neighbours can be added up `together`, apart from the others."""
        self.runs, self.shapes = runs, shapes
        self.sizes = [runs * s * n for s, n in shapes]
        self.length = sum(n for _, n in shapes)
        # Of every block: where its piece begins, S, N, first column within it, first column of the result.
        self.tables: list[tuple[tuple[int, int], Tensor]] = []
        start = column = 0
        for group in batched(shapes, together):
            tile = TALL if group[0][0] > 2 * FLAT[1] else FLAT
            table = []
            for s, n in group:
                table += [(start, s, n, first, column + first) for first in range(0, n, tile[0])]
                start, column = start + runs * s * n, column + n
            self.tables.append((tile, torch.tensor(table, device=device)))
        self.device = device

    def buffer(self) -> Tensor:
        return torch.empty(sum(self.sizes), device=self.device)

    def pieces(self, buffer: Tensor) -> list[Tensor]:
        parts = buffer.split(self.sizes)
        return [p.view(self.runs, s, n) for p, (s, n) in zip(parts, self.shapes, strict=True)]

    def result(self) -> Tensor:
        return torch.empty((self.runs, self.length), device=self.device)

    def add_up(self, buffer: Tensor, result: Tensor, group: int) -> None:
        """The totals of one group of pieces, into their columns of the result."""
        if not available(buffer):
            result.copy_(totals_plain(self.pieces(buffer)))
            return
        tile, table = self.tables[group]
        _total[(len(table), self.runs)](buffer, table, result, self.length, *tile, num_warps=4)

    def __call__(self, buffer: Tensor) -> Tensor:
        result = self.result()
        for group in range(len(self.tables)):
            self.add_up(buffer, result, group)
        return result


def batched(items: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    return [items[start : start + count] for start in range(0, len(items), count)]


@jit
def _take(rows: tensor, places: tensor, out: tensor, stride: tensor, count: tensor, BLOCK: constexpr) -> None:
    run = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(places + at, mask=at < count, other=-1)
    value = tl.load(rows + run * stride + place, mask=place >= 0, other=0.0)
    tl.store(out + run * count + at, value.to(out.dtype.element_ty), mask=at < count)


@jit
def _total(buffer: tensor, table: tensor, out: tensor, length: tensor, COLUMNS: constexpr, DEEP: constexpr) -> None:
    run = tl.program_id(1).to(tl.int64)
    entry = table + tl.program_id(0) * 5
    start, pieces, width = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    first, column = tl.load(entry + 3), tl.load(entry + 4)
    at, deep = tl.arange(0, COLUMNS), tl.arange(0, DEEP)
    mask = first + at < width
    source = buffer + start + run * pieces * width + first + at
    total = tl.zeros([DEEP, COLUMNS], tl.float32)
    for top in range(0, pieces, DEEP):
        piece = top + deep
        there = (piece < pieces)[:, None] & mask[None, :]
        total += tl.load(source[None, :] + piece[:, None] * width, mask=there, other=0.0)
    tl.store(out + run * length + column + at, tl.sum(total, 0), mask=mask)
