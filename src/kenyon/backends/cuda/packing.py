"""Maps between a run's flat row and the order in which the tensor cores take weights and leave sums.

Where the weights and biases of convolutions lie, in runs' rows and in the order of the kernels.

Passes over rows of numbers: taking them in another order, and adding up what many blocks of threads left.

Triton where there is a GPU; the plain versions say what is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.backends.cuda.choices import Stage
from kenyon.backends.cuda.plan import Convolution, DenseTiling, Sharing, Tiling
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

Map = npt.NDArray[np.int64]


def _row_position(c: Convolution, tap: Map, i: Map, o: Map) -> Map:
    """Where the weight of (tap, input channel, output channel) lies in a run's row; -1: there is none."""
    if c.first:
        tap, colour = i // c.inputs, i % c.inputs
        there = (i < 9 * c.inputs) & (o < c.learners * c.outputs)
        position = c.weight + (o * c.inputs + colour) * 9 + tap
    else:
        there = (i < c.learners * c.inputs) & (o < c.learners * c.outputs) & (i // c.inputs == o // c.outputs)
        position = c.weight + (o * c.inputs + i % c.inputs) * 9 + tap
    return np.where(there, position, -1)


_LANE, _ELEMENT = np.divmod(np.arange(128), 4)


def _products(products: Iterator[tuple[int, int, int]]) -> tuple[Map, Map, Map]:
    table = np.array(list(products), dtype=np.int64)[:, :, None]
    return table[:, 0], table[:, 1], table[:, 2]


def _weights(tiling: Tiling | DenseTiling) -> tuple[Map, Map, Map]:
    """Tap, input and output of each weight in the order of the kernel."""
    if isinstance(tiling, DenseTiling):
        s = tiling.shape
        sizes = (s.channels_out // tiling.slice, s.taps, s.channels_in // 8, tiling.slice, 8)
        number, tap, chunk, n, inner = np.indices(sizes).reshape(5, -1)
        return tap, 8 * chunk + inner, number * tiling.slice + n
    tap, k, n = _products(tiling.products())
    inner = 2 * (_LANE % 4) + _ELEMENT % 2 + _ELEMENT // 2 * 8  # the tensor cores' order of a 16 x 8 block
    return tap, 16 * k + inner, 8 * n + _LANE // 4


def forward_map(c: Convolution, tiling: Tiling | DenseTiling) -> Map:
    """For each weight in the order of the kernel its place in the row."""
    tap, i, o = _weights(tiling)
    return _row_position(c, tap, i, o).ravel()


def backward_map(c: Convolution, tiling: Tiling | DenseTiling) -> Map:
    """The same for the gradient of the input: inputs and outputs swapped, the kernel turned round."""
    tap, i, o = _weights(tiling)
    return _row_position(c, 8 - tap, o, i).ravel()


def gradient_map(c: Convolution, sharing: Sharing) -> Map:
    """For each weight of the layer, in the row's order, its place in a record of `weigh`."""
    tap, k, n = _products(sharing.products())
    i, o = 16 * k + _LANE // 4 + _ELEMENT // 2 * 8, 8 * n + _LANE % 4 * 2 + _ELEMENT % 2  # of a 16 x 8 block of sums
    row = _row_position(c, tap, i, o).ravel()
    places = np.full(c.weight_count, -1, dtype=np.int64)
    found = row >= 0
    places[row[found] - c.weight] = np.flatnonzero(found)
    assert (places >= 0).all()
    return places


class Packing:
    """Places (int32) in a row at which what the kernels need is to be found, in their order; -1: there is none. With
    learners apart, a row has the networks of so many runs, each with its part of every segment, and what one of them
    needs lies behind what the one before it does.
    """

    def __init__(self, stages: Sequence[Stage], apart: int, device: torch.device) -> None:
        # Parameters of the convolutions lie at the beginning of a row, layer by layer.
        parameters = max(s.layer.bias + apart * s.layer.learners * s.layer.outputs for s in stages)
        maps = [
            (
                forward_map(s.layer, s.tiling),
                np.empty(0, np.int64) if s.backward is None else backward_map(s.layer, s.backward),
                gradient_map(s.layer, s.sharing),
            )
            for s in stages
        ]
        weights: list[Map] = []
        biases: list[Map] = []
        gradients = np.empty(parameters, np.int64)
        column = 0
        for number in range(apart):
            for s, (forward, backward, gradient) in zip(stages, maps, strict=True):
                layer, count = s.layer, s.layer.learners * s.layer.outputs
                later, bias = number * layer.weight_count, layer.bias + number * count
                weights += [np.where(places >= 0, places + later, -1) for places in (forward, backward)]
                biases.append(bias + np.arange(count))
                gradients[layer.weight + later :][: layer.weight_count] = column + gradient
                column += s.sharing.record
                gradients[bias : bias + count] = column + np.arange(count)
                column += layer.channels_out

        def here(places: Sequence[Map]) -> Tensor:
            return torch.from_numpy(np.concatenate(places)).to(torch.int32).to(device)

        self.weights, self.biases = here(weights), here(biases)
        self.gradients = here([gradients])  # of each parameter, in a row of totals
        # Of one run: how many weights and biases, and where those of each layer begin.
        self.weight_count, self.bias_count = len(self.weights) // apart, len(self.biases) // apart
        ends = np.cumsum([0, *(len(places) for each in maps for places in each[:2])])
        self.forwards, self.backwards = ends[:-1:2].tolist(), ends[1:-1:2].tolist()
        self.first_biases = np.cumsum([0, *(s.layer.learners * s.layer.outputs for s in stages)])[:-1].tolist()


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
