from __future__ import annotations

import hashlib

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.benchmarks.omniglot import FINE, ONE, SIDE, enlarge, poses


def blot(x: int, y: int, radius: int = 4) -> Tensor:
    place = torch.arange(FINE)
    return (((place[:, None] - y) ** 2 + (place - x) ** 2) <= radius**2).to(torch.uint8).mul(255)


def plain(drawing: Tensor, pose: list[int]) -> Tensor:
    """One pixel at a time: the bilinear mean of 2 x 2 fine pixels around the place it comes from."""

    def ink(row: int, column: int) -> int:
        return int(drawing[row, column]) if 0 <= row < FINE and 0 <= column < FINE else 0

    def around(row: int, column: int) -> int:
        return sum(ink(row - i, column - j) for i in (0, 1) for j in (0, 1))

    cos, sin, x, y = pose
    image = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
    for i in range(SIDE):
        for j in range(SIDE):
            u, v = 2 * j + 1 - SIDE, 2 * i + 1 - SIDE
            px, py = cos * u + sin * v + x, cos * v - sin * u + y
            column, row = px // ONE, py // ONE
            fx, fy = px % ONE // 4, py % ONE // 4
            upper = around(row, column) * (256 - fx) + around(row, column + 1) * fx
            lower = around(row + 1, column) * (256 - fx) + around(row + 1, column + 1) * fx
            image[i, j] = (upper * (256 - fy) + lower * fy + 2**17) >> 18
    return image


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 1000), degrees=st.floats(0, 180), pixels=st.floats(0, 20))
def test_versions_are_those_of_the_plain_loop(seed: int, degrees: float, pixels: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawings = torch.randint(0, 256, (2, FINE, FINE), dtype=torch.uint8, generator=generator)
    lying = poses(2, 2, degrees, pixels)
    images = enlarge(drawings, lying)
    assert torch.equal(images[1, 1], plain(drawings[1], lying[1, 1].tolist()))


def test_the_first_version_is_the_drawing_itself() -> None:
    drawing = torch.randint(0, 256, (1, FINE, FINE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean = drawing.view(SIDE, 2, SIDE, 2).to(torch.int32).sum((1, 3))
    assert torch.equal(enlarge(drawing, poses(1, 3, 15.0, 2.0))[0, 0].int(), (mean + 2) // 4)


def test_poses_lie_within_their_ranges() -> None:
    lying = poses(400, 20, 15.0, 2.0)[:, 1:].double() / ONE
    angle = torch.atan2(lying[..., 1], lying[..., 0]).rad2deg()
    assert float(angle.min()) < -14.9 and float(angle.max()) > 14.9 and float(angle.abs().max()) < 15.1
    # The centre of an image comes from a place that is the shift turned back: as far away as the shift is long.
    away = (lying[..., 2:] - SIDE).norm(dim=-1)
    assert 5.5 < float(away.max()) <= 4 * 2**0.5 + 0.01


def test_turning_and_shifting_go_the_way_they_should() -> None:
    """A blot to the right of the middle, turned by 90 degrees, lies above or below it; shifts move it."""
    right = blot(FINE // 2 + 16, FINE // 2)[None]
    turned = torch.tensor([[[0, ONE, SIDE * ONE, SIDE * ONE]]], dtype=torch.int32)
    rows, columns = torch.nonzero(enlarge(right, turned)[0, 0] > 100).double().mean(0).tolist()
    assert abs(columns - 13.5) < 0.6 and abs(abs(rows - 13.5) - 8) < 0.6
    shifted = torch.tensor([[[ONE, 0, (SIDE - 6) * ONE, (SIDE + 4) * ONE]]], dtype=torch.int32)
    rows, columns = torch.nonzero(enlarge(right, shifted)[0, 0] > 100).double().mean(0).tolist()
    assert abs(columns - (13.5 + 8 + 3)) < 0.6 and abs(rows - (13.5 - 2)) < 0.6


def test_the_bits_are_the_same_everywhere() -> None:
    drawings = torch.stack([blot(10 + 2 * i, 40 - i) for i in range(8)])
    made = enlarge(drawings, poses(8, 20, 15.0, 2.0))
    assert (
        hashlib.sha256(made.numpy().tobytes()).hexdigest()
        == "689a15139557b7b774b0e85e944b3816b811601111f4ffbad29bfacd25ae8667"
    )
