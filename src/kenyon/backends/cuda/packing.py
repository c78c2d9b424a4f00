"""Index maps between a run's flat row and the order of weights and sums in the kernels, and passes that apply them.

The passes gather numbers of rows in another order, and sum the partial results of blocks of threads; on a GPU they
are Triton kernels, defined by their plain versions.
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
    """Return the position of the weight of (tap, input channel, output channel) in a run's row; -1: none."""
    if c.first:
        tap, colour = i // c.inputs, i % c.inputs
        exists = (i < 9 * c.inputs) & (o < c.learners * c.outputs)
        position = c.weight + (o * c.inputs + colour) * 9 + tap
    else:
        exists = (i < c.learners * c.inputs) & (o < c.learners * c.outputs) & (i // c.inputs == o // c.outputs)
        position = c.weight + (o * c.inputs + i % c.inputs) * 9 + tap
    return np.where(exists, position, -1)


_LANE, _ELEMENT = np.divmod(np.arange(128), 4)


def _products(products: Iterator[tuple[int, int, int]]) -> tuple[Map, Map, Map]:
    table = np.array(list(products), dtype=np.int64)[:, :, None]
    return table[:, 0], table[:, 1], table[:, 2]


def _weights(tiling: Tiling | DenseTiling) -> tuple[Map, Map, Map]:
    """Return tap, input and output of each weight in the order of the kernel."""
    if isinstance(tiling, DenseTiling):
        s = tiling.shape
        sizes = (s.channels_out // tiling.slice, s.taps, s.channels_in // 8, tiling.slice, 8)
        number, tap, chunk, n, inner = np.indices(sizes).reshape(5, -1)
        return tap, 8 * chunk + inner, number * tiling.slice + n
    tap, k, n = _products(tiling.products())
    inner = 2 * (_LANE % 4) + _ELEMENT % 2 + _ELEMENT // 2 * 8  # the order of a 16 x 8 block in the tensor cores
    return tap, 16 * k + inner, 8 * n + _LANE // 4


def forward_map(c: Convolution, tiling: Tiling | DenseTiling) -> Map:
    """Return the position in the row of each weight in the order of the kernel."""
    tap, i, o = _weights(tiling)
    return _row_position(c, tap, i, o).ravel()


def backward_map(c: Convolution, tiling: Tiling | DenseTiling) -> Map:
    """Like `forward_map`, for the gradient of the input: inputs and outputs swapped, the kernel rotated by 180°."""
    tap, i, o = _weights(tiling)
    return _row_position(c, 8 - tap, o, i).ravel()


def gradient_map(c: Convolution, sharing: Sharing) -> Map:
    """Return the position in a record of `weigh` of each weight of the layer, in the row's order."""
    tap, k, n = _products(sharing.products())
    i, o = 16 * k + _LANE // 4 + _ELEMENT // 2 * 8, 8 * n + _LANE % 4 * 2 + _ELEMENT % 2  # of a 16 x 8 block of sums
    row = _row_position(c, tap, i, o).ravel()
    places = np.full(c.weight_count, -1, dtype=np.int64)
    valid = row >= 0
    places[row[valid] - c.weight] = np.flatnonzero(valid)
    assert (places >= 0).all()
    return places


class Packing:
    """Positions (int32) in a row of the numbers that the kernels take, in their order; -1: none.

    With independent learners, a row holds several networks, each a slice of every segment. The kernels take the
    numbers of one network after those of another.
    """

    def __init__(self, stages: Sequence[Stage], independent: int, device: torch.device) -> None:
        # The parameters of the convolutions come first in a row, layer by layer.
        parameters = max(s.layer.bias + independent * s.layer.learners * s.layer.outputs for s in stages)
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
        for number in range(independent):
            for s, (forward, backward, gradient) in zip(stages, maps, strict=True):
                layer, count = s.layer, s.layer.learners * s.layer.outputs
                later, bias = number * layer.weight_count, layer.bias + number * count
                weights += [np.where(places >= 0, places + later, -1) for places in (forward, backward)]
                biases.append(bias + np.arange(count))
                gradients[layer.weight + later :][: layer.weight_count] = column + gradient
                column += s.sharing.record
                gradients[bias : bias + count] = column + np.arange(count)
                column += layer.channels_out

        def on_device(places: Sequence[Map]) -> Tensor:
            return torch.from_numpy(np.concatenate(places)).to(torch.int32).to(device)

        self.weights, self.biases = on_device(weights), on_device(biases)
        self.gradients = on_device([gradients])  # of each parameter, in a row of totals
        # Of one run: the number of weights and biases, and the first ones of each layer.
        self.weight_count, self.bias_count = len(self.weights) // independent, len(self.biases) // independent
        ends = np.cumsum([0, *(len(places) for each in maps for places in each[:2])])
        self.forwards, self.backwards = ends[:-1:2].tolist(), ends[1:-1:2].tolist()
        self.first_biases = np.cumsum([0, *(s.layer.learners * s.layer.outputs for s in stages)])[:-1].tolist()


BLOCK = 1024
# (columns, rows) of a tile of partial sums that are summed at once.
FLAT, TALL = (256, 8), (32, 64)


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda


def taken_plain(rows: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of rows (R, N) at `places` (M,), as (R, M). A place of -1 gives 0."""
    values = rows.index_select(1, places.clamp(min=0))
    return torch.where(places >= 0, values, 0.0).to(dtype)


def taken(rows: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
    if not available(rows):
        return taken_plain(rows, places, dtype)
    out = torch.empty((len(rows), len(places)), dtype=dtype, device=rows.device)
    grid = (-(-len(places) // BLOCK), len(rows))
    _take[grid](rows, places, out, rows.stride(0), len(places), BLOCK, num_warps=4)
    return out


def totals_plain(partial: list[Tensor]) -> Tensor:
    """Sum each tensor (R, S, N) over S, and concatenate them: (R, sum of N)."""
    return torch.cat([each.sum(1) for each in partial], dim=1)


class Totals:
    """`totals_plain` in one pass, for tensors that are adjacent in one buffer."""

    def __init__(self, runs: int, shapes: list[tuple[int, int]], device: torch.device, together: int = 1) -> None:
        """`shapes`: (S, N) of each tensor; `together`: the number of adjacent tensors in a group of `add_up`."""
        self.runs, self.shapes = runs, shapes
        self.sizes = [runs * s * n for s, n in shapes]
        self.length = sum(n for _, n in shapes)
        # Of every block: offset of its tensor, S, N, first column within it, first column of the result.
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

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors (R, S, N) in a buffer."""
        chunks = buffer.split(self.sizes)
        return [chunk.view(self.runs, s, n) for chunk, (s, n) in zip(chunks, self.shapes, strict=True)]

    def result(self) -> Tensor:
        return torch.empty((self.runs, self.length), device=self.device)

    def add_up(self, buffer: Tensor, result: Tensor, group: int) -> None:
        """Write the totals of one group of tensors to their columns of the result."""
        if not available(buffer):
            result.copy_(totals_plain(self.views(buffer)))
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
    start, depth, width = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    first, column = tl.load(entry + 3), tl.load(entry + 4)
    at, deep = tl.arange(0, COLUMNS), tl.arange(0, DEEP)
    mask = first + at < width
    source = buffer + start + run * depth * width + first + at
    total = tl.zeros([DEEP, COLUMNS], tl.float32)
    for top in range(0, depth, DEEP):
        row = top + deep
        valid = (row < depth)[:, None] & mask[None, :]
        total += tl.load(source[None, :] + row[:, None] * width, mask=valid, other=0.0)
    tl.store(out + run * length + column + at, tl.sum(total, 0), mask=mask)
