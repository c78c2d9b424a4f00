"""Division of a convolution into work for the tensor cores.

A `Convolution` describes one 3x3 layer of K learners. `Tiles` divide its maps among blocks of threads; `Tiling`,
`DenseTiling` and `Sharing` divide the work of the kernels (see convolve.cu, convolve_dense.cu and weigh.cu) and
define the macros they are compiled with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kenyon.backends.layers import padded

Lines = tuple[int, int] | None  # (first, number) of the valid rows and columns of the output; None: all


@dataclass(frozen=True)
class Tiles:
    """Tiles of square maps. Pixels outside of all tiles are not computed."""

    map: int
    rows: int  # of a tile
    wide: int  # its columns
    images: int  # that a tile spans, at the same position in each
    top: int  # first row of the first tile
    down: int  # number of tiles in a column
    left: int  # first column of the first tile
    across: int  # number of tiles in a row

    @property
    def pixels(self) -> int:
        return self.images * self.rows * self.wide

    def bordered(self, border: int) -> int:
        """Return the pixels of a tile with `border` additional rows and columns."""
        return self.images * (self.rows + border) * (self.wide + border)

    def count(self, batch: int) -> int:
        return -(-batch // self.images) * self.down * self.across

    @property
    def fraction(self) -> float:
        """The fraction of a map's pixels in tiles."""
        return self.down * self.rows * self.across * self.wide / self.map**2

    @property
    def macros(self) -> dict[str, int]:
        """Macros of the kernels; positions are omitted if all rows, or all columns by one tile, are covered."""
        macros = {"ROWS": self.rows, "IMAGES": self.images}
        if self.down * self.rows < self.map:
            macros |= {"TOP": self.top, "TILES_DOWN": self.down}
        if self.wide < self.map:
            macros |= {"WIDE": self.wide, "LEFT": self.left, "TILES_ACROSS": self.across}
        return macros


def tiles_of(map: int, rows: int, wide: int, images: int, lines: Lines) -> Tiles | None:
    """Return tiles that cover the valid pixels, or None if tiles of this size would exceed the map."""
    top, down = _along(map, rows, lines)
    left, across = _along(map, wide, lines)
    if min(top, left) < 0:
        return None
    return Tiles(map, rows, wide, images, top, down, left, across)


def _along(map: int, size: int, lines: Lines) -> tuple[int, int]:
    """Return the first row or column of tiles of this size, which is even, and the number of tiles."""
    first, count = lines or (0, map)
    number = -(-(first % 2 + count) // size)
    return min(first // 2 * 2, map - number * size), number


def covered(map: int, lines: Lines) -> int:
    """Return the side of the area that tiles have to cover, in blocks of 8 pixels, the unit of the kernels."""
    return 8 * _along(map, 8, lines)[1] if map % 8 == 0 else map


def tile_of(pixels: int, side: int) -> tuple[int, int]:
    """Return (rows, images) of a tile of about `pixels` pixels in a square area with this side."""
    if pixels > side * side:
        return side, pixels // (side * side)
    return (1 << (pixels // side).bit_length()) >> 1, 1  # a power of two, which divides a map, or 0


# Bytes of shared memory that a block may have on Hopper; a multiprocessor reserves 1 KiB more for each.
SHARED_MEMORY = 227 * 1024


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution of all learners with padding 1, and its ReLU and pooling."""

    map: int  # height and width
    learners: int
    inputs: int  # channels of one learner
    outputs: int
    pooled: bool  # followed by 2x2 pooling
    first: bool  # reads images, which all learners share; their 1 or 3 colours are its inputs
    weight: int  # offset of its weights (K, O, I, 3, 3) in a run's row
    bias: int  # offset of its biases (K, O)
    relu: bool = True
    rows: Lines = None  # valid rows and columns of its output

    @property
    def channels_in(self) -> int:
        # The nine neighbours of an image's pixel count as its channels.
        return padded((9 if self.first else self.learners) * self.inputs)

    @property
    def channels_out(self) -> int:
        return padded(self.learners * self.outputs)

    @property
    def weight_count(self) -> int:
        return self.learners * self.outputs * self.inputs * 9


@dataclass(frozen=True)
class Shape:
    """The shape that a kernel is compiled for: a convolution, or its transpose for gradients of inputs."""

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
        """Return True if inputs 16k..16k+15 and outputs 8n..8n+7 share a learner."""
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

    @property
    def border(self) -> int:
        """Additional rows and columns of inputs that a tile needs."""
        return 2 if self.taps == 9 else 0


def stride(channels: int) -> int:
    """Return the bytes from pixel to pixel in shared memory."""
    return 2 * channels + 16


@dataclass(frozen=True)
class Tiling:
    """Division of a layer for `convolve` (see convolve.cu)."""

    kernel: ClassVar[str] = "convolve"
    shape: Shape
    tiles: Tiles
    warps_m: int
    warps_n: int
    patches_each: int
    blocks_each: int
    resident: int

    @property
    def chunks(self) -> int:
        return self.shape.channels_out // (8 * self.blocks_each)

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def shared_bytes(self) -> int:
        out = 16 * self.patches_each * self.warps_m * stride(8 * self.blocks_each * self.warps_n)
        return max(self.tiles.bordered(self.shape.border) * stride(self.shape.channels_in), out)

    def grid(self, batch: int, runs: int, processors: int) -> tuple[int, int, int]:
        return self.tiles.count(batch), self.chunks // self.warps_n, runs

    @property
    def macros(self) -> dict[str, int]:
        return {
            **self.shape.macros,
            **self.tiles.macros,
            "THREADS": self.threads,
            "WARPS_M": self.warps_m,
            "WARPS_N": self.warps_n,
            "PATCHES_EACH": self.patches_each,
            "BLOCKS_EACH": self.blocks_each,
            "RESIDENT": self.resident,
        }

    def products(self) -> Iterator[tuple[int, int, int]]:
        """Yield (tap, k, n) in the order of weights in memory."""
        s = self.shape
        for chunk in range(self.chunks):
            for tap in range(s.taps):
                for k in range(s.channels_in // 16):
                    for n in range(chunk * self.blocks_each, (chunk + 1) * self.blocks_each):
                        if s.used(k, n):
                            yield tap, k, n


@dataclass(frozen=True)
class DenseTiling:
    """Division of a layer of one learner for `convolve_dense` (see convolve_dense.cu)."""

    kernel: ClassVar[str] = "convolve_dense"
    rows: ClassVar[int] = 8  # of a tile
    shape: Shape
    tiles: Tiles
    slice: int
    teams: int

    @property
    def threads(self) -> int:
        return 128 * self.teams

    @property
    def shared_bytes(self) -> int:
        s, chunks = self.shape, self.shape.channels_in // 8
        plane = -(-self.tiles.bordered(s.border) * 16 // 128) * 128 + (16 if chunks > 4 else 32 if chunks > 2 else 64)
        weights = s.taps * s.channels_in * self.slice * 2
        return weights + self.teams * (chunks * plane + self.tiles.pixels * stride(self.slice))

    @property
    def sums(self) -> int:
        """Sums per thread: 4 for each 8 x 8 pixels and 8 outputs."""
        return self.tiles.wide // 8 * self.slice // 2

    def grid(self, batch: int, runs: int, processors: int) -> tuple[int, int, int]:
        """Return the grid; blocks iterate over tiles, and all blocks together fill the device once."""
        slices = self.shape.channels_out // self.slice
        tiles = self.tiles.count(batch)
        return max(1, min(-(-tiles // self.teams), processors // (runs * slices))), slices, runs

    @property
    def macros(self) -> dict[str, int]:
        return {
            **self.shape.macros,
            **self.tiles.macros,
            "THREADS": 128,
            "SLICE": self.slice,
            "TEAMS": self.teams,
        }


@dataclass(frozen=True)
class Sharing:
    """Division of the gradient of a layer's weights for `weigh` (see weigh.cu)."""

    shape: Shape  # of the forward convolution
    tiles: Tiles  # the gradient outside of them is zero
    inputs_each: int
    outputs_each: int
    groups: int
    splits: int
    resident: int
    stages: int  # tiles in shared memory: with 2, one is loaded while the other is multiplied
    pooled: bool  # gradients are those of the output of 2x2 pooling

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
        pixels = self.tiles.pixels
        tile = self.tiles.bordered(s.border) * stride(inputs)
        windows = pixels // 4 * outputs * 3 if self.pooled else 0  # values and codes before unpooling
        return max(self.stages * (tile + pixels * stride(outputs)) + windows, self.threads * 8 * 4)

    def blocks(self, batch: int, runs: int, processors: int) -> int:
        """Return the blocks of threads for the tiles of one run and slice; all blocks fill the device once."""
        slices = self.all_groups // self.groups
        return max(1, min(self.tiles.count(batch), self.resident * processors // (runs * slices)))

    @property
    def record(self) -> int:
        """Numbers in the result of one block."""
        return 128 * sum(1 for _ in self.products())

    @property
    def macros(self) -> dict[str, int]:
        return {
            **self.shape.macros,
            **self.tiles.macros,
            "THREADS": self.threads,
            "INPUTS_EACH": self.inputs_each,
            "OUTPUTS_EACH": self.outputs_each,
            "GROUPS": self.groups,
            "SPLITS": self.splits,
            "RESIDENT": self.resident,
            "STAGES": self.stages,
        }

    def products(self) -> Iterator[tuple[int, int, int]]:
        """Yield (tap, k, n) in the order of a record."""
        s = self.shape
        across = s.channels_out // (8 * self.outputs_each)
        for group in range(self.all_groups):
            first_k, first_n = group // across * self.inputs_each, group % across * self.outputs_each
            for tap in range(s.taps):
                for k in range(first_k, first_k + self.inputs_each):
                    for n in range(first_n, first_n + self.outputs_each):
                        if s.used(k, n):
                            yield tap, k, n
