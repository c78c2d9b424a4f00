"""Views of images against slow ones: Pillow, PyTorch's own resizing, and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from kenyon.data import CentreCrop, Crop, Ragged, ResizedCrop
from kenyon.random import Noise
from kenyon.training.augmentation import TRIES, augmented, boxes, uniforms

seeds = st.integers(0, 2**62)
sides = st.integers(1, 40)


def noise(*keys: int, step: int = 0) -> Noise:
    return Noise.at(torch.tensor(keys), torch.tensor([step]))


def equal_pool(count: int = 7, height: int = 9, width: int = 8, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator)


def ragged_pool(sizes: list[tuple[int, int]]) -> Ragged:
    heights, widths = (torch.tensor(x) for x in zip(*sizes, strict=True))
    areas = heights * widths
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (int(areas.sum()), 3), dtype=torch.uint8, generator=generator)
    return Ragged(pixels, areas.cumsum(0) - areas, heights, widths)


def as_picture(image: Tensor) -> Image.Image:
    """Of a tensor (H, W, C)."""
    return Image.fromarray(image.contiguous().numpy())


def as_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture))


# Windows of the image's own size


@settings(deadline=None, max_examples=50)
@given(seed=seeds, padding=st.integers(0, 5), height=st.integers(1, 9), width=st.integers(1, 9), flip=st.booleans())
def test_a_crop_is_that_of_the_padded_picture(seed: int, padding: int, height: int, width: int, flip: bool) -> None:
    pool, index, drawn = equal_pool(5, height, width), torch.tensor([4, 0, 0, 3]), noise(seed)
    got = augmented(Crop(padding, flip), pool, index, drawn)
    assert got.shape == (4, height, width, 3) and got.dtype == torch.uint8
    chance = uniforms(drawn, index, 3)
    for b, i in enumerate(index.tolist()):
        top, left = (int(float(chance[b, axis]) * (2 * padding + 1)) for axis in (0, 1))
        padded = ImageOps.expand(as_picture(pool[i]), padding, 0)
        window = padded.crop((left, top, left + width, top + height))
        if flip and float(chance[b, 2]) < 0.5:
            window = ImageOps.mirror(window)
        assert torch.equal(got[b], as_tensor(window))


def test_all_places_and_both_directions_are_taken() -> None:
    pool, index = equal_pool(1, 12, 12), torch.zeros(4000, dtype=torch.long)
    got = augmented(Crop(2), pool, index, noise(5))
    different, counts = torch.unique(got.flatten(1), dim=0, return_counts=True)
    assert len(different) == 5 * 5 * 2
    assert int(counts.min()) >= 40 and int(counts.max()) <= 125  # 80 on average


@settings(deadline=None, max_examples=20)
@given(seed=seeds)
def test_no_shift_and_no_flip_change_nothing(seed: int) -> None:
    pool, index = equal_pool(), torch.tensor([[2, 6], [0, 1]])
    assert torch.equal(augmented(Crop(0, flip=False), pool, index, noise(seed, 3)), pool[index])
    assert torch.equal(augmented(None, pool, index), pool[index])
    whole = ResizedCrop(8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=False)
    square = pool[:, :8].contiguous()
    assert torch.equal(augmented(whole, square, index, noise(seed, 3)), square[index])


# Windows of any size


def plain_box(view: ResizedCrop, height: int, width: int, chance: np.ndarray) -> tuple[int, int, int, int]:
    """One image at a time, in the precision of the device."""
    f = np.float32
    low = f(math.log(view.ratio[0]))
    for attempt in range(TRIES):
        area = f(height * width) * (f(view.scale[0]) + f(view.scale[1] - view.scale[0]) * chance[attempt])
        aspect = np.exp(low + f(math.log(view.ratio[1]) - math.log(view.ratio[0])) * chance[TRIES + attempt])
        w, h = int(np.rint(np.sqrt(area * aspect))), int(np.rint(np.sqrt(area / aspect)))
        if 0 < w <= width and 0 < h <= height:
            return int(chance[2 * TRIES] * f(height - h + 1)), int(chance[2 * TRIES + 1] * f(width - w + 1)), h, w
    w, h = width, height
    if width / height < view.ratio[0]:
        h = round(width / view.ratio[0])
    elif width / height > view.ratio[1]:
        w = round(height * view.ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w


@settings(deadline=None, max_examples=200)
@given(seed=seeds, height=st.integers(1, 600), width=st.integers(1, 600), least=st.floats(0.01, 1))
def test_a_box_is_the_one_of_the_plain_loop(seed: int, height: int, width: int, least: float) -> None:
    view = ResizedCrop(scale=(least, 1.0))
    chance = uniforms(noise(seed), torch.zeros(8, dtype=torch.long), 2 * TRIES + 3)
    got = torch.stack(boxes(view, torch.full((8,), height), torch.full((8,), width), chance), -1)
    for b in range(8):
        want = plain_box(view, height, width, chance[b].numpy())
        # A rounded half may fall either way between two ways to compute a square root.
        assert max(abs(g - w) for g, w in zip(got[b].tolist(), want, strict=True)) <= 1


@settings(deadline=None, max_examples=200)
@given(
    seed=seeds,
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    scale=st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted),
)
def test_a_box_lies_inside_the_image(
    seed: int, height: int, width: int, scale: list[float], ratio: list[float]
) -> None:
    view = ResizedCrop(scale=(scale[0], scale[1]), ratio=(ratio[0], ratio[1]))
    chance = uniforms(noise(seed), torch.zeros(16, dtype=torch.long), 2 * TRIES + 3)
    top, left, h, w = boxes(view, torch.full((16,), height), torch.full((16,), width), chance)
    assert int(top.min()) >= 0 and int(left.min()) >= 0
    assert int((top + h).max()) <= height and int((left + w).max()) <= width
    assert int(w.min()) >= 1 and int(h.min()) >= 1


def test_boxes_have_the_areas_and_aspects_asked_for() -> None:
    chance = uniforms(noise(3), torch.zeros(20_000, dtype=torch.long), 2 * TRIES + 3)
    sizes = torch.full((20_000,), 1000)
    _, _, h, w = boxes(ResizedCrop(), sizes, sizes, chance)
    area, aspect = (h * w).double() / 1e6, w.double() / h
    assert 0.079 < float(area.min()) < 0.09 and float(area.max()) <= 1.0
    assert float(aspect.min()) > 0.745 and float(aspect.max()) < 1.341
    assert abs(float(aspect.log().mean())) < 0.01  # as often wide as tall
    assert 0.5 < float((area < 0.5).double().mean()) < 0.56  # 0.457 were it not for large ones that do not fit


@settings(deadline=None, max_examples=50)
@given(seed=seeds, sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=4), size=st.integers(1, 30))
def test_a_resized_crop_is_that_of_pytorch(seed: int, sizes: list[tuple[int, int]], size: int) -> None:
    pool, index, drawn = ragged_pool(sizes), torch.arange(len(sizes)).repeat(2), noise(seed)
    view = ResizedCrop(size)
    got = augmented(view, pool, index, drawn)
    chance = uniforms(drawn, index, 2 * TRIES + 3)
    top, left, height, width = boxes(view, pool.height[index], pool.width[index], chance)
    for b, i in enumerate(index.tolist()):
        t, x, h, w = (int(value[b]) for value in (top, left, height, width))
        window = pool[i][:, t : t + h, x : x + w].float().unsqueeze(0)
        want = F.interpolate(window, (size, size), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
        if float(chance[b, -1]) < 0.5:
            want = want.flip(1)
        assert float((got[b].float() - want).abs().max()) <= 0.51


def test_an_enlarged_window_is_that_of_pillow() -> None:
    pool, index, drawn = ragged_pool([(20, 30), (25, 18)]), torch.tensor([0, 1, 1]), noise(11)
    view = ResizedCrop(64, flip=False)
    got = augmented(view, pool, index, drawn)
    chance = uniforms(drawn, index, 2 * TRIES + 3)
    for b, (t, x, h, w) in enumerate(torch.stack(boxes(view, pool.height[index], pool.width[index], chance), -1)):
        picture = as_picture(pool[int(index[b])].permute(1, 2, 0))
        box = (int(x), int(t), int(x + w), int(t + h))
        want = picture.crop(box).resize((64, 64), Image.Resampling.BILINEAR)
        assert int((got[b].int() - as_tensor(want).int()).abs().max()) <= 1  # Pillow rounds after each direction


# The middle


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=4), size=st.integers(1, 45))
def test_a_centre_crop_is_the_middle(sizes: list[tuple[int, int]], size: int) -> None:
    pool = ragged_pool(sizes)
    got = augmented(CentreCrop(size), pool, torch.arange(len(sizes)))
    for i, (height, width) in enumerate(sizes):
        top, left = round((height - size) / 2), round((width - size) / 2)
        want = as_picture(pool[i].permute(1, 2, 0)).crop((left, top, left + size, top + size))  # black outside
        assert torch.equal(got[i], as_tensor(want))


# Runs


@pytest.mark.parametrize("view", [Crop(), ResizedCrop(12)], ids=lambda view: type(view).__name__)
def test_a_run_draws_the_same_alone_and_among_others(view: Crop | ResizedCrop) -> None:
    pool = equal_pool() if isinstance(view, Crop) else ragged_pool([(20, 14), (9, 9), (13, 31)])
    index = torch.randint(0, 3, (3, 5), generator=torch.Generator().manual_seed(2))
    together = augmented(view, pool, index, noise(5, 6, 7, step=4))
    assert together.shape[:2] == (3, 5)
    for run, own in enumerate((5, 6, 7)):
        assert torch.equal(augmented(view, pool, index[run], noise(own, step=4)), together[run])
    assert not torch.equal(augmented(view, pool, index, noise(5, 6, 7, step=5)), together)
    assert torch.equal(augmented(view, pool, index, noise(5, 6, 7, step=4)), together)


def test_views_that_make_no_sense_are_refused() -> None:
    ragged, equal, index = ragged_pool([(3, 4)]), equal_pool(), torch.tensor([0])
    for view, pool in ((None, ragged), (Crop(), ragged), (Crop(), equal), (ResizedCrop(), equal)):
        with pytest.raises(ValueError, match=r"noise|unequal|equal sizes"):
            augmented(view, pool, index, noise(0) if pool is ragged else None)
