"""Windows of images of one size: the kernel against the plain version, which `test_augment` holds against Pillow."""

from __future__ import annotations

import pytest
import torch

from kenyon.data import Crop
from kenyon.random import Noise
from kenyon.training import augmentation as cropping
from kenyon.training.augmentation import crop, crop_plain
from tests.interpreter import DEVICE, interpreted


@pytest.mark.kernels
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    ("runs", "share", "height", "width", "channels", "padding"),
    [(1, 5, 7, 9, 3, 2), (3, 4, 12, 12, 1, 4), (2, 2, 33, 40, 8, 0), (1, 1, 1, 1, 3, 5), (2, 64, 8, 8, 4, 1)],
)
def test_the_kernel_is_the_plain_version(
    runs: int, share: int, height: int, width: int, channels: int, padding: int, flip: bool
) -> None:
    chance = torch.Generator().manual_seed(height + runs)
    pool = torch.randint(1, 256, (6, height, width, channels), dtype=torch.uint8, generator=chance).to(DEVICE)
    index = torch.randint(0, 6, (runs, share), generator=chance).to(DEVICE)
    keys = torch.randint(0, 2**62, (runs,), generator=chance).to(DEVICE)
    noise, view = Noise.at(keys, torch.tensor([7], device=DEVICE)), Crop(padding, flip)
    assert cropping.available(pool)
    got, want = crop(view, pool, index, noise), crop_plain(view, pool, index, noise)
    assert got.dtype == torch.uint8 and torch.equal(got, want)
    assert padding == 0 or bool((want == 0).any())  # windows reach beyond the images
    for run in range(runs):  # alone as among others
        mine = noise.of_runs(slice(run, run + 1))
        assert torch.equal(crop(view, pool, index[run], mine), want[run])


@pytest.mark.kernels
def test_images_far_behind_in_a_large_pool_are_found() -> None:
    """Places beyond 2^31, which a number of 32 bits does not hold."""
    if DEVICE != "cuda":
        pytest.skip("two gigabytes")
    pool = torch.zeros(2**31 // 12288 + 9, 64, 64, 3, dtype=torch.uint8, device=DEVICE)
    pool[-1] = 7
    noise = Noise.at(torch.tensor([3], device=DEVICE), torch.tensor([0], device=DEVICE))
    index = torch.tensor([len(pool) - 1, 0], device=DEVICE)
    found = crop(Crop(0), pool, index, noise)
    assert bool((found[0] == 7).all()) and not found[1].any()


def test_the_kernel_in_the_interpreter() -> None:
    interpreted(__file__)
