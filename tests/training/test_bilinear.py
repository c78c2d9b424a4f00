"""Means of four neighbours: the plain version against loops, the kernel against the plain version."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.training import augmentation as module
from kenyon.training.augmentation import Between, bilinear, bilinear_plain
from tests.interpreter import DEVICE, interpreted


def drawn(images: tuple[int, ...], height: int, width: int, channels: int) -> tuple[Tensor, Between, Between]:
    """Of 40 x 30 pixels; some weights are exactly 0 and 1/2, and some neighbours are the same."""
    chance = torch.Generator().manual_seed(sum(images) + height + width + channels)
    pixels = torch.randint(0, 256, (1200, channels), dtype=torch.uint8, generator=chance)

    def between(count: int, steps: int, stride: int) -> Between:
        one = torch.randint(0, steps, (*images, count), generator=chance)
        other = (one + 1).clamp(max=steps - 1)
        weight = torch.rand(*images, count, generator=chance)
        weight[..., 0], weight[..., -1] = 0.0, 0.5
        return (one * stride).to(DEVICE), (other * stride).to(DEVICE), weight.to(DEVICE)

    return pixels.to(DEVICE), between(height, 40, 30), between(width, 30, 1)


def test_every_pixel_is_the_mean_of_its_four_neighbours() -> None:
    pixels, rows, columns = drawn((2, 3), 4, 5, 3)
    got = bilinear_plain(pixels, rows, columns)
    assert got.shape == (2, 3, 4, 5, 3) and got.dtype == torch.uint8
    (upper, lower, down), (left, right, across) = ([x.cpu() for x in part] for part in (rows, columns))
    for run, image, i, j in torch.cartesian_prod(*(torch.arange(n) for n in (2, 3, 4, 5))).tolist():
        vertical = [(int(at[run, image, i]), float(w)) for at, w in _weighed(upper, lower, down[run, image, i])]
        horizontal = [(int(at[run, image, j]), float(w)) for at, w in _weighed(left, right, across[run, image, j])]
        want = sum(v * h * pixels[y + x].double() for y, v in vertical for x, h in horizontal)
        assert float((got[run, image, i, j].double() - want).abs().max()) <= 0.5001


def _weighed(first: Tensor, second: Tensor, weight: Tensor) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    return (first, 1 - float(weight)), (second, float(weight))


@pytest.mark.kernels
@pytest.mark.parametrize("channels", [1, 3, 8])
@pytest.mark.parametrize(("images", "height", "width"), [((3,), 1, 1), ((2, 2), 33, 17), ((5,), 40, 64)])
def test_the_kernel_is_the_plain_version(images: tuple[int, ...], height: int, width: int, channels: int) -> None:
    asked = drawn(images, height, width, channels)
    assert module.bilinear_available(asked[0])
    got, want = bilinear(*asked), bilinear_plain(*asked)
    different = (got.int() - want.int()).abs()
    assert int(different.max()) <= 1  # where a GPU rounds a product and a sum as one
    assert float(different.float().mean()) < 0.002


def test_the_kernel_in_the_interpreter() -> None:
    interpreted(__file__)
