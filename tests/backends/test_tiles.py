"""Tiles narrower than the map: what they cover, when they are chosen, and that kernels compute the same in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kenyon.backends.cuda import choices
from kenyon.backends.cuda.choices import Stage, choose_tiling
from kenyon.backends.cuda.plan import DenseTiling, Lines, Shape, Tiling, covered, tile_of, tiles_of
from kenyon.backends.cuda.tiled import plan_stages
from kenyon.backends.layers import PlannedLayers
from kenyon.models import Net, cifar_cnn, omniglot_cnn
from tests.backends import emulation
from tests.backends.test_convolutions import check_layer, layer


def stages_of(backbone: nn.Module, learners: int, shape: tuple[int, int, int]) -> list[Stage]:
    net = Net(backbone, shape, [5], learners=learners)
    steps = PlannedLayers(net.backbone, shape, learners, folds=True).steps  # type: ignore[arg-type]
    stages = plan_stages(steps, shape, net.layout, learners)
    assert stages is not None
    return stages


def divisions(stage: Stage) -> list[Any]:
    return [d for d in (stage.tiling, stage.sharing, stage.backward) if d is not None]


# ------------------------------------------------------------------ what tiles cover


@given(
    map=st.sampled_from([8, 16, 32, 64]),
    rows=st.sampled_from([2, 4, 8, 16]),
    wide=st.sampled_from([8, 16, 24, 32, 64]),
    first=st.integers(0, 63),
    count=st.integers(1, 64),
)
def test_tiles_cover_what_counts(map: int, rows: int, wide: int, first: int, count: int) -> None:
    first, count = first % map, min(count, map - first % map)
    tiles = tiles_of(map, rows, wide, 1, (first, count))
    if tiles is None:
        assert max(rows, wide) > 8  # those of 8 x 8 always fit
        return
    for begin, size, number in ((tiles.top, rows, tiles.down), (tiles.left, wide, tiles.across)):
        assert begin % 2 == 0 and 0 <= begin <= first
        assert first + count <= begin + size * number <= map
        assert size * number < count + 1 + size  # no tile too many
    assert covered(map, (first, count)) <= map
    assert tiles.count(7) == 7 * tiles.down * tiles.across
    assert tiles.fraction * map**2 == pytest.approx(tiles.count(1) * tiles.pixels)


@pytest.mark.parametrize(
    ("pixels", "side", "expected"),
    [(64, 32, (2, 1)), (256, 8, (8, 4)), (128, 24, (4, 1)), (256, 24, (8, 1)), (64, 64, (1, 1)), (64, 128, (0, 1))],
)
def test_rows_and_images_of_a_tile(pixels: int, side: int, expected: tuple[int, int]) -> None:
    assert tile_of(pixels, side) == expected


# ------------------------------------------------------------------ when they are chosen


@pytest.mark.parametrize(("width", "learners"), [(32, 1), (9, 5)])
def test_where_everything_counts_tiles_are_as_wide_as_the_map(width: int, learners: int) -> None:
    """CIFAR: nothing was to change there when tiles learnt to be narrower."""
    for stage in stages_of(cifar_cnn(width, learners), learners, (3, 32, 32)):
        for division in divisions(stage):
            tiles = division.tiles
            assert (tiles.wide, tiles.across, tiles.left, tiles.top) == (stage.layer.map, 1, 0, 0)
            assert tiles.fraction == 1.0
            assert not {"WIDE", "LEFT", "TILES_ACROSS", "TOP", "TILES_DOWN"} & division.macros.keys()


@pytest.mark.parametrize(("width", "learners"), [(64, 1), (28, 5)])
def test_what_does_not_count_is_left_out(width: int, learners: int) -> None:
    """Omniglot: of 26, 24, 10 and 8 rows and columns whole blocks of 8 can be left out where a pooling follows."""
    for stage, forward in zip(
        stages_of(omniglot_cnn(width, learners), learners, (1, 28, 28)), (None, 24, None, 8), strict=True
    ):
        for division in (stage.tiling, stage.sharing) if forward is not None else ():
            tiles = division.tiles
            assert (tiles.wide * tiles.across, tiles.rows * tiles.down) == (forward, forward)
            assert (tiles.left, tiles.top) == (4, 4)
        assert stage.backward is None or stage.backward.tiles.fraction == 1.0
        if width == 64 and not stage.layer.first:  # by products of four warps, of which enough overlap
            for tiling in (stage.tiling, stage.backward):
                assert isinstance(tiling, DenseTiling) and tiling.teams >= 3 and tiling.sums <= 64


def test_narrow_tiles_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "NARROW", False)
    stages = stages_of(omniglot_cnn(64), 1, (1, 28, 28))
    assert all(d.tiles.wide == stage.layer.map for stage in stages for d in divisions(stage))
    assert isinstance(stages[1].tiling, Tiling) and stages[1].tiling.tiles.fraction == 24 / 32


# ------------------------------------------------------------------ what the kernels compute in them


def to(wide: int) -> Callable[[Any, Lines], Any]:
    def cut(division: Any, lines: Lines) -> Any:
        tiles = division.tiles
        # The warps of `convolve` have as many pixels as before.
        rows = tiles.pixels // wide if isinstance(division, Tiling) else tiles.rows
        return replace(division, tiles=tiles_of(tiles.map, rows, wide, tiles.images, lines))

    return cut


NARROW: list[tuple[int, tuple[Any, ...]]] = [
    (8, (16, 1, 64, 64, True, False)),  # by teams, with gradients from behind a pooling
    (8, (16, 1, 64, 64, False, False)),  # masked
    (8, (16, 2, 12, 12, True, False)),
    (8, (16, 3, 7, 7, False, False)),
    (8, (16, 2, 3, 7, True, True)),  # images
    (8, (32, 1, 16, 16, True, False, True, (4, 24))),  # three tiles across, not from the first column on
]
MORE: list[tuple[int, tuple[Any, ...]]] = [
    (8, (16, 1, 1, 16, False, True)),
    (16, (32, 1, 16, 16, False, False, False)),
    (8, (16, 1, 64, 64, True, False, False)),
    (8, (32, 1, 64, 64, False, False, True, (4, 24))),
    (16, (32, 1, 64, 64, True, False, True, (9, 11))),
]


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("wide", "shape"), [*NARROW, *(pytest.param(*case, marks=pytest.mark.torture) for case in MORE)], ids=str
)
def test_a_layer_in_tiles_of_a_given_width(wide: int, shape: tuple[Any, ...]) -> None:
    check_layer(layer(*shape), emulation.build, "cpu", cut=to(wide))


CHOSEN: list[tuple[Any, ...]] = [
    (32, 1, 16, 16, False, False, True, (20, 11)),  # at the last row and column
]
MORE_CHOSEN: list[tuple[Any, ...]] = [
    (32, 1, 28, 28, True, False, True, (4, 24)),
    (32, 1, 64, 64, True, False, True, (4, 24)),
    (16, 1, 28, 28, True, False, False, (4, 8)),
    (32, 2, 7, 7, False, False, True, (5, 12)),
    (64, 1, 16, 16, True, False, True, (2, 56)),
]


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "shape", [*CHOSEN, *(pytest.param(shape, marks=pytest.mark.torture) for shape in MORE_CHOSEN)], ids=str
)
def test_a_layer_in_tiles_as_chosen(shape: tuple[Any, ...]) -> None:
    c = layer(*shape)
    tiling = choose_tiling(Shape.forward(c), True, c.rows)
    assert tiling is not None and tiling.tiles.wide < c.map
    check_layer(c, emulation.build, "cpu")
