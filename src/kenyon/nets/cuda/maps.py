"""Maps between a run's flat row and the order in which the tensor cores take weights and leave sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kenyon.nets.cuda.plan import Convolution, DenseTiling, Sharing, Tiling

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
