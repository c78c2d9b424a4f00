"""How a convolution is cut into work for the tensor cores, and where its weights lie for them.

A `Convolution` describes one 3x3 layer of K learners; `Tiling` and `Sharing` say how the kernels divide its work (see
convolve.cu and weigh.cu). From these come the macros a kernel is compiled with and the maps between a run's flat row
of parameters and the order in which the tensor cores take weights and leave gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kenyon.nets.dropout import padded

Map = npt.NDArray[np.int64]
SHARED_MEMORY = (
    227 * 1024
)  # bytes of shared memory a block may have on Hopper; a multiprocessor has 1 KiB more for each
IMAGE_CHANNELS = 32  # 27 neighbours of a pixel, padded


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution with padding 1 and its ReLU, of all learners."""

    map: int  # height and width
    learners: int
    inputs: int  # channels of one learner
    outputs: int
    pooled: bool  # 2x2 pooling behind it
    first: bool  # reads the images, which all learners share
    weight: int  # where its weights begin in a run's row: (K, O, I, 3, 3)
    bias: int  # (K, O)

    @property
    def channels_in(self) -> int:
        return IMAGE_CHANNELS if self.first else padded(self.learners * self.inputs)

    @property
    def channels_out(self) -> int:
        return padded(self.learners * self.outputs)

    @property
    def weight_count(self) -> int:
        return self.learners * self.outputs * self.inputs * 9


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: a convolution, or its turned-round form that carries gradients back."""

    map: int
    channels_in: int
    channels_out: int
    inputs: int  # of one learner; 0: all learners see all inputs
    outputs: int
    learners: int
    taps: int

    @classmethod
    def forward(cls, c: Convolution) -> Shape:
        inputs = 0 if c.first else c.inputs
        return cls(c.map, c.channels_in, c.channels_out, inputs, c.outputs, c.learners, 1 if c.first else 9)

    @classmethod
    def backward(cls, c: Convolution) -> Shape:
        return cls(c.map, c.channels_out, c.channels_in, c.outputs, c.inputs, c.learners, 9)

    def used(self, k: int, n: int) -> bool:
        """Whether inputs 16k..16k+15 and outputs 8n..8n+7 share a learner."""
        if self.inputs == 0:
            return True
        return any(
            16 * k < (m + 1) * self.inputs
            and 16 * k + 16 > m * self.inputs
            and 8 * n < (m + 1) * self.outputs
            and 8 * n + 8 > m * self.outputs
            for m in range(self.learners)
        )

    @property
    def macros(self) -> dict[str, int]:
        return {
            "MAP": self.map,
            "CI": self.channels_in,
            "CO": self.channels_out,
            "LI": self.inputs,
            "LO": self.outputs,
            "LEARNERS": self.learners,
            "TAPS": self.taps,
        }

    def tile_bytes(self, rows: int, images: int) -> int:
        border = 2 if self.taps == 9 else 0
        return images * (rows + border) * (self.map + border) * stride(self.channels_in)


def stride(channels: int) -> int:
    """Bytes from pixel to pixel in shared memory."""
    return 2 * channels + 16


@dataclass(frozen=True)
class Tiling:
    """How `convolve` divides a layer: see convolve.cu."""

    shape: Shape
    rows: int
    images: int
    warps_m: int
    warps_n: int
    patches_each: int
    blocks_each: int
    resident: int

    @property
    def parts(self) -> int:
        return self.shape.channels_out // (8 * self.blocks_each)

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def shared_bytes(self) -> int:
        out = 16 * self.patches_each * self.warps_m * stride(8 * self.blocks_each * self.warps_n)
        return max(self.shape.tile_bytes(self.rows, self.images), out)

    def grid(self, batch: int, runs: int) -> tuple[int, int, int]:
        tiles = -(-batch // self.images) * (self.shape.map // self.rows)
        return tiles, self.parts // self.warps_n, runs

    @property
    def macros(self) -> dict[str, int]:
        return {
            **self.shape.macros,
            "ROWS": self.rows,
            "IMAGES": self.images,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "PATCHES_EACH": self.patches_each,
            "BLOCKS_EACH": self.blocks_each,
            "RESIDENT": self.resident,
        }

    def products(self) -> Iterator[tuple[int, int, int]]:
        """(tap, k, n) in the order in which weights lie."""
        s = self.shape
        for part in range(self.parts):
            for tap in range(s.taps):
                for k in range(s.channels_in // 16):
                    for n in range(part * self.blocks_each, (part + 1) * self.blocks_each):
                        if s.used(k, n):
                            yield tap, k, n


def tile_of(pixels: int, side: int) -> tuple[int, int]:
    """(rows, images) of a tile of so many pixels."""
    return (pixels // side, 1) if pixels <= side * side else (side, pixels // (side * side))


@dataclass(frozen=True)
class Sharing:
    """How `weigh` divides a layer: see weigh.cu."""

    shape: Shape  # of the convolution itself
    rows: int
    images: int
    inputs_each: int
    outputs_each: int
    groups: int
    splits: int
    resident: int

    @property
    def threads(self) -> int:
        return 32 * (3 if self.shape.taps == 9 else 1) * self.groups * self.splits

    @property
    def all_groups(self) -> int:
        s = self.shape
        return (s.channels_in // (16 * self.inputs_each)) * (s.channels_out // (8 * self.outputs_each))

    @property
    def shared_bytes(self) -> int:
        s = self.shape
        across = s.channels_out // (8 * self.outputs_each)
        inputs = 16 * self.inputs_each * max(1, self.groups // across) if s.taps == 9 else s.channels_in
        outputs = 8 * self.outputs_each * min(self.groups, across)
        pixels = self.images * self.rows * s.map
        tile = s.tile_bytes(self.rows, self.images) // stride(s.channels_in) * stride(inputs)
        return max(tile + pixels * stride(outputs), self.threads * 8 * 4)

    def tiles(self, batch: int) -> int:
        return -(-batch // self.images) * (self.shape.map // self.rows)

    def blocks(self, batch: int, runs: int, processors: int) -> int:
        """How many blocks of threads share the tiles of one run and slice: together they fill the device once."""
        slices = self.all_groups // self.groups
        return max(1, min(self.tiles(batch), self.resident * processors // (runs * slices)))

    @property
    def record(self) -> int:
        """Numbers that one block leaves."""
        return 128 * sum(1 for _ in self.products())

    @property
    def macros(self) -> dict[str, int]:
        return {
            **self.shape.macros,
            "ROWS": self.rows,
            "IMAGES": self.images,
            "INPUTS_EACH": self.inputs_each,
            "OUTPUTS_EACH": self.outputs_each,
            "GROUPS": self.groups,
            "SPLITS": self.splits,
            "RESIDENT": self.resident,
        }

    def products(self) -> Iterator[tuple[int, int, int]]:
        """(tap, k, n) in the order of a record."""
        s = self.shape
        across = s.channels_out // (8 * self.outputs_each)
        for group in range(self.all_groups):
            first_k, first_n = group // across * self.inputs_each, group % across * self.outputs_each
            for tap in range(s.taps):
                for k in range(first_k, first_k + self.inputs_each):
                    for n in range(first_n, first_n + self.outputs_each):
                        if s.used(k, n):
                            yield tap, k, n


def _row_position(c: Convolution, tap: Map, i: Map, o: Map) -> Map:
    """Where the weight of (tap, input channel, output channel) lies in a run's row; -1: there is none."""
    if c.first:
        tap, colour = i // 3, i % 3
        there = (i < 27) & (o < c.learners * c.outputs)
        position = c.weight + (o * 3 + colour) * 9 + tap
    else:
        there = (i < c.learners * c.inputs) & (o < c.learners * c.outputs) & (i // c.inputs == o // c.outputs)
        position = c.weight + (o * c.inputs + i % c.inputs) * 9 + tap
    return np.where(there, position, -1)


_LANE, _ELEMENT = np.divmod(np.arange(128), 4)


def _products(products: Iterator[tuple[int, int, int]]) -> tuple[Map, Map, Map]:
    table = np.array(list(products), dtype=np.int64)[:, :, None]
    return table[:, 0], table[:, 1], table[:, 2]


def forward_map(c: Convolution, tiling: Tiling) -> Map:
    """For each weight in the order of `convolve` its place in the row."""
    tap, k, n = _products(tiling.products())
    inner = 2 * (_LANE % 4) + _ELEMENT % 2 + _ELEMENT // 2 * 8  # the tensor cores' order of a 16 x 8 block
    return _row_position(c, tap, 16 * k + inner, 8 * n + _LANE // 4).ravel()


def backward_map(c: Convolution, tiling: Tiling) -> Map:
    """The same for the gradient of the input: inputs and outputs swapped, the kernel turned round."""
    tap, k, n = _products(tiling.products())
    inner = 2 * (_LANE % 4) + _ELEMENT % 2 + _ELEMENT // 2 * 8
    return _row_position(c, 8 - tap, 8 * n + _LANE // 4, 16 * k + inner).ravel()


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


# ------------------------------------------------------------------ choices, measured on an H200 (see docs/speed.md)

_RESIDENT = 16  # warps of `convolve` on a multiprocessor, each thread with 128 registers


def choose_tiling(shape: Shape) -> Tiling | None:
    """None where the layer does not fit the kernel."""
    blocks = shape.channels_out // 8
    if shape.taps == 1:  # little work a pixel: small tiles, two warps
        each = blocks // 2 if blocks <= 6 else _divisor(blocks, 4)
        warps_n = 2 if blocks <= 6 else 1
        warps_m = max(2 // warps_n, shape.map // 32)  # a tile has at least two rows
        rows = 64 * warps_m // shape.map
    else:  # every warp has 8 x 8 pixels
        sparse = shape.inputs > 0 and shape.learners > 1
        each = _divisor(blocks, 3 if sparse and blocks % 3 == 0 else 4)
        warps_m, rows = shape.map // 8, 8
        warps_n = _divisor(blocks // each, max(1, 8 // warps_m))
    if rows < 2 or shape.map % rows:
        return None
    tiling = Tiling(shape, rows, 1, warps_m, warps_n, 4, each, 1)
    room = (SHARED_MEMORY + 1024) // (tiling.shared_bytes + 1024)
    return replace(tiling, resident=min(room, max(1, _RESIDENT // (warps_m * warps_n)))) if room else None


def choose_sharing(shape: Shape) -> Sharing | None:
    best: tuple[float, Sharing] | None = None
    side = 3 if shape.taps == 9 else 1
    inputs, outputs = shape.channels_in // 16, shape.channels_out // 8
    for inputs_each in _divisors(inputs, 4):
        for outputs_each in (d for d in _divisors(outputs, 32) if d % 2 == 0):
            sizes = _group_sizes(shape, inputs_each, outputs_each)
            sums = max(sizes) * side  # blocks of 16 x 8 sums that one warp keeps in registers
            if sums > 30:
                continue
            for sharing in _sharings(shape, inputs_each, outputs_each, len(sizes), sums):
                cost = _cost(sharing, sizes)
                if best is None or cost < best[0]:
                    best = cost, sharing
    return best[1] if best else None


def _group_sizes(shape: Shape, inputs_each: int, outputs_each: int) -> list[int]:
    across = shape.channels_out // 8 // outputs_each
    sizes = [0] * (shape.channels_in // 16 // inputs_each * across)
    for k in range(shape.channels_in // 16):
        for n in range(shape.channels_out // 8):
            sizes[k // inputs_each * across + n // outputs_each] += shape.used(k, n)
    return sizes


def _sharings(shape: Shape, inputs_each: int, outputs_each: int, all_groups: int, sums: int) -> Iterator[Sharing]:
    side = 3 if shape.taps == 9 else 1
    across = shape.channels_out // 8 // outputs_each
    for groups in (1, 2, 3, 4):
        for splits in (1, 2, 4):
            warps = side * groups * splits
            if all_groups % groups or not 2 <= warps <= 12 or (groups % across and across % groups):
                continue
            for pixels in (64, 128, 256):
                rows, images = tile_of(pixels, shape.map)
                if rows < 2 or rows % 2 or shape.map % rows:
                    continue
                sharing = Sharing(shape, rows, images, inputs_each, outputs_each, groups, splits, 1)
                most = 24 if sums <= 8 else 16 if sums <= 16 else 12  # warps whose sums fit into registers
                resident = min(max(1, most // warps), (SHARED_MEMORY + 1024) // (sharing.shared_bytes + 1024))
                if resident:
                    yield replace(sharing, resident=resident)


def _cost(sharing: Sharing, sizes: list[int]) -> float:
    """A guess at cycles per pixel: products, what is fetched from shared memory, and the tiles brought there."""
    s = sharing.shape
    side = 3 if s.taps == 9 else 1
    slices = sharing.all_groups // sharing.groups
    products = max(sizes) * side * sharing.all_groups * side / 16 * 1.6
    matrices = (side * sharing.inputs_each + sharing.outputs_each / 2) * side * sharing.all_groups / 16 * 4
    pixels = sharing.images * sharing.rows * s.map
    tile = sharing.shared_bytes / pixels * slices / 24
    wait = 1000 * slices / (pixels * sharing.resident)  # for the tile to come
    warps = sharing.resident * sharing.threads / 32
    return (max(products, matrices) + tile) * (1 + 4 / warps) + wait


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _divisor(number: int, most: int) -> int:
    return _divisors(number, most)[-1]
