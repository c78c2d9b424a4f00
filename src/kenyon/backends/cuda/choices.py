"""Choice of tilings for the convolutions of a backbone, by rules from measurements on an H200 (see docs/speed.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kenyon.backends.cuda.plan import (
    SHARED_MEMORY,
    Convolution,
    DenseTiling,
    Lines,
    Shape,
    Sharing,
    Tiling,
    covered,
    tile_of,
    tiles_of,
)
from kenyon.backends.layers import DropoutSite

NARROW = True  # tiles may be narrower than the map
_RESIDENT = 16  # warps of `convolve` on a multiprocessor, with 128 registers per thread
_TEAMS = 3  # of `convolve_dense`: one loads, one stores and one multiplies
_SUMS = 64  # per thread of `convolve_dense`


def choose_tiling(shape: Shape, teams: bool, lines: Lines = None) -> Tiling | DenseTiling | None:
    """Return a tiling, or None if the kernels do not support the layer; `teams`: products of four warps exist."""
    dense = _choose_dense(shape, lines) if teams and shape.learners == 1 and shape.taps == 9 else None
    return dense or _choose_tiling(shape, lines)


def _choose_dense(shape: Shape, lines: Lines) -> DenseTiling | None:
    """Return the tiling that covers the fewest columns; of several, one with enough teams; of these, the widest."""
    if shape.map not in (8, 16, 32):
        return None
    slice = 64  # narrower products load too much: with 32 outputs `convolve` is as fast or faster
    if shape.channels_out % slice:
        return None
    fitting = []
    for wide in range(8, shape.map + 1, 8) if NARROW else (shape.map,):
        tiles = tiles_of(shape.map, DenseTiling.rows, wide, 1, lines)
        sizes = (DenseTiling(shape, tiles, slice, teams) for teams in (4, 3, 2)) if tiles else ()
        fits = next((d for d in sizes if d.shared_bytes <= SHARED_MEMORY and d.sums <= _SUMS), None)
        if fits is not None:
            fitting.append(fits)
    return min(fitting, key=lambda d: (d.tiles.fraction, d.teams < _TEAMS, -d.tiles.wide), default=None)


def _width(map: int, lines: Lines) -> int:
    """Return the width of tiles of `convolve` and `weigh`, one of which spans the covered columns."""
    return covered(map, lines) if NARROW else map


def _choose_tiling(shape: Shape, lines: Lines) -> Tiling | None:
    blocks = shape.channels_out // 8
    if shape.taps == 1:  # little work per pixel: small tiles, two warps
        each = blocks // 2 if blocks <= 6 else _divisor(blocks, 4)
        warps_n = 2 if blocks <= 6 else 1
        wide = shape.map  # other widths do not divide among the warps
        warps_m = max(2 // warps_n, wide // 32)  # a tile has at least two rows
        rows = 64 * warps_m // wide
    else:  # 8 x 8 pixels per warp
        sparse = shape.inputs > 0 and shape.learners > 1
        each = _divisor(blocks, 3 if sparse and blocks % 3 == 0 else 4)
        wide = _width(shape.map, lines)
        warps_m, rows = wide // 8, 8
        warps_n = _divisor(blocks // each, max(1, 8 // warps_m))
    tiles = tiles_of(shape.map, rows, wide, 1, lines) if rows >= 2 else None
    if tiles is None or tiles.pixels != 64 * warps_m:
        return None
    if 32 * warps_m * warps_n < shape.channels_in // 8:  # a thread loads eight channels; together they load all
        return None
    tiling = Tiling(shape, tiles, warps_m, warps_n, 4, each, 1)
    room = (SHARED_MEMORY + 1024) // (tiling.shared_bytes + 1024)
    return replace(tiling, resident=min(room, max(1, _RESIDENT // (warps_m * warps_n)))) if room else None


def choose_sharing(shape: Shape, pooled: bool, lines: Lines = None) -> Sharing | None:
    """Return the division of `weigh` with the least estimated cost, or None if the layer does not fit."""
    best: tuple[float, Sharing] | None = None
    side = 3 if shape.taps == 9 else 1
    inputs, outputs = shape.channels_in // 16, shape.channels_out // 8
    for inputs_each in _divisors(inputs, 4):
        for outputs_each in (d for d in _divisors(outputs, 32) if d % 2 == 0):
            sizes = _group_sizes(shape, inputs_each, outputs_each)
            sums = max(sizes) * side  # blocks of 16 x 8 sums in the registers of a warp
            if sums > 30:
                continue
            for sharing in sharings(shape, pooled, inputs_each, outputs_each, len(sizes), sums, lines):
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


def sharings(
    shape: Shape,
    pooled: bool,
    inputs_each: int,
    outputs_each: int,
    all_groups: int,
    sums: int,
    lines: Lines = None,
) -> Iterator[Sharing]:
    side = 3 if shape.taps == 9 else 1
    across, wide = shape.channels_out // 8 // outputs_each, _width(shape.map, lines)
    most = 24 if sums <= 8 else 16 if sums <= 16 else 12  # warps whose sums fit into registers
    for groups, splits, pixels, stages in product((1, 2, 3, 4), (1, 2, 4), (64, 128, 256), (1, 2)):
        warps = side * groups * splits
        if all_groups % groups or not 2 <= warps <= 12 or (groups % across and across % groups):
            continue
        rows, images = tile_of(pixels, wide)
        tiles = tiles_of(shape.map, rows, wide, images, lines) if rows >= 2 else None
        if tiles is None or rows % 2:
            continue
        sharing = Sharing(shape, tiles, inputs_each, outputs_each, groups, splits, 1, stages, pooled)
        resident = min(max(1, most // warps), (SHARED_MEMORY + 1024) // (sharing.shared_bytes + 1024))
        if resident and sharing.threads >= max(shape.channels_in, shape.channels_out) // 8:
            yield replace(sharing, resident=resident)


def _cost(sharing: Sharing, sizes: list[int]) -> float:
    """Estimate cycles per pixel: products, loads from shared memory, and loads of tiles into it."""
    s = sharing.shape
    side = 3 if s.taps == 9 else 1
    slices = sharing.all_groups // sharing.groups
    products = max(sizes) * side * sharing.all_groups * side / 16 * 1.6
    matrices = (side * sharing.inputs_each + sharing.outputs_each / 2) * side * sharing.all_groups / 16 * 4
    pixels, patches = sharing.tiles.pixels, sharing.tiles.pixels // 16
    uneven = -(-patches // sharing.splits) * sharing.splits / patches  # some warps have fewer patches
    tile = sharing.shared_bytes / (pixels * sharing.stages) * slices / 24
    wait = 1000 * slices / (pixels * sharing.resident)  # for the tile to arrive
    if sharing.stages == 2:  # it arrives while another is multiplied
        tile, wait = tile / 2, wait / 4
    warps = sharing.resident * sharing.threads / 32
    return ((max(products, matrices) * uneven + tile) * (1 + 4 / warps) + wait) * sharing.tiles.fraction


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def _divisor(number: int, most: int) -> int:
    return _divisors(number, most)[-1]


@dataclass(frozen=True)
class Stage:
    """A convolution with its tilings."""

    layer: Convolution
    site: DropoutSite | None
    tiling: Tiling | DenseTiling
    backward: Tiling | DenseTiling | None  # None for the first layer: the gradient of images is not needed
    sharing: Sharing


def choose_stages(layers: Sequence[tuple[Convolution, DropoutSite | None]], teams: bool) -> list[Stage] | None:
    """Return the stages, or None if the kernels do not support a layer; `teams`: products of four warps exist."""
    stages = []
    for layer, site in layers:
        shape = Shape.forward(layer)
        tiling = choose_tiling(shape, teams, layer.rows)
        sharing = choose_sharing(shape, layer.pooled, layer.rows)
        backward = None if layer.first else choose_tiling(Shape.backward(layer), teams)
        if tiling is None or sharing is None or (backward is None and not layer.first):
            return None
        stages.append(Stage(layer, site, tiling, backward, sharing))
    return stages


def multiplications(stages: Sequence[Stage]) -> int:
    """Return the products of a forward pass per image and run: numbers in a record of `weigh` times pixels."""
    return sum(s.sharing.record * s.layer.map**2 for s in stages)
