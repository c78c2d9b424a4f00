"""Random windows of images, cut on the device for all samples at once.

The numbers of a run are a function of its own noise: they do not depend on the runs beside it. All shapes are known
beforehand and nothing is read back, so that a CUDA graph can hold it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kenyon.random import Noise
from kenyon.streams.pool import Pool, Ragged
from kenyon.streams.views import Augmentation, CentreCrop, Crop, ResizedCrop, Testing
from kenyon.train import cropping
from kenyon.train.bilinear import bilinear

TRIES = 10  # windows drawn before a ResizedCrop gives up and takes the middle


def augmented(view: Augmentation | Testing, pool: Pool, index: Tensor, noise: Noise | None = None) -> Tensor:
    """What the view shows of the pool's images at index (..., B): uint8 (..., B, H, W, C).

    The pool has its channel last, (N, H, W, C), or is ragged. `noise` is that of the step of the runs at hand: its R
    runs have equal shares of the samples in order, so that (B,) goes with one run and (R, B) with R.
    """
    match view:
        case Crop() | ResizedCrop():
            if noise is None:
                raise ValueError("A random window needs noise.")
            return (
                crop(view, pool, index, noise) if isinstance(view, Crop) else resized_crop(view, pool, index, noise)
            )
        case CentreCrop():
            return centre_crop(view, pool, index)
        case None:
            if isinstance(pool, Ragged):
                raise ValueError("Images of unequal sizes make no batch as they are.")
            return pool.index_select(0, index.flatten()).unflatten(0, index.shape)


def crop(view: Crop, pool: Pool, index: Tensor, noise: Noise) -> Tensor:
    if isinstance(pool, Ragged):
        raise ValueError("A window of the image's own size needs images of equal sizes.")
    return (
        cropping.cropped(view, pool, index, noise)
        if cropping.available(pool)
        else crop_plain(view, pool, index, noise)
    )


def crop_plain(view: Crop, pool: Tensor, index: Tensor, noise: Noise) -> Tensor:
    height, width = pool.shape[1:3]
    chance = uniforms(noise, index, 3)
    places = 2 * view.padding + 1
    top, left = (_whole(chance[..., i], places) - view.padding for i in (0, 1))
    return _window(pool, index, top, left, height, width, _flips(view.flip, chance[..., 2]))


def centre_crop(view: CentreCrop, pool: Pool, index: Tensor) -> Tensor:
    """Where the image is smaller than the window, the rest is black."""
    heights, widths = _sizes(pool, index)
    top, left = (((side - view.size) / 2).round().long() for side in (heights, widths))
    return _window(pool, index, top, left, view.size, view.size, torch.zeros_like(top, dtype=torch.bool))


def resized_crop(view: ResizedCrop, pool: Pool, index: Tensor, noise: Noise) -> Tensor:
    chance = uniforms(noise, index, 2 * TRIES + 3)
    heights, widths = _sizes(pool, index)
    top, left, height, width = boxes(view, heights, widths, chance)
    flip = _flips(view.flip, chance[..., -1])
    rows, down = _steps(height, view.size)
    columns, right = _steps(width, view.size)
    columns = torch.where(flip[..., None], columns.flip(-1), columns)
    right = torch.where(flip[..., None], right.flip(-1), right)
    # The rows and columns beyond the last one of the window have no weight; they only have to exist.
    lower = torch.minimum(rows + 1, (height - 1)[..., None])
    beyond = torch.minimum(columns + 1, (width - 1)[..., None])
    pixels, start, stride = _places(pool, index)
    start, stride = (start + top * stride + left)[..., None], stride[..., None]
    return bilinear(pixels, (start + rows * stride, start + lower * stride, down), (columns, beyond, right))


def boxes(view: ResizedCrop, heights: Tensor, widths: Tensor, chance: Tensor) -> tuple[Tensor, ...]:
    """Windows (top, left, height, width) in images of the given sizes (...), from uniform numbers (..., 2 TRIES + 2).

    Of TRIES windows of random area and aspect the first that fits; when none does, the largest in the middle whose
    aspect is allowed.
    """
    area = (heights * widths).to(torch.float32)[..., None]
    low, high = (math.log(aspect) for aspect in view.ratio)
    wanted = area * (view.scale[0] + (view.scale[1] - view.scale[0]) * chance[..., :TRIES])
    aspect = torch.exp(low + (high - low) * chance[..., TRIES : 2 * TRIES])
    tried_width, tried_height = (wanted * aspect).sqrt().round().long(), (wanted / aspect).sqrt().round().long()
    fits = (tried_width > 0) & (tried_width <= widths[..., None])
    fits &= (tried_height > 0) & (tried_height <= heights[..., None])
    first = fits.to(torch.int32).argmax(-1, keepdim=True)  # of equal values the first
    fallback_height, fallback_width = _largest(view, heights, widths)
    any_fits = fits.any(-1)
    height = torch.where(any_fits, tried_height.gather(-1, first).squeeze(-1), fallback_height)
    width = torch.where(any_fits, tried_width.gather(-1, first).squeeze(-1), fallback_width)
    spare_rows, spare_columns = heights - height, widths - width
    top = torch.where(any_fits, _whole(chance[..., 2 * TRIES], spare_rows + 1), spare_rows // 2)
    left = torch.where(any_fits, _whole(chance[..., 2 * TRIES + 1], spare_columns + 1), spare_columns // 2)
    return top, left, height, width


def _largest(view: ResizedCrop, heights: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
    """The image itself, or as much of it as has an aspect that is not too narrow and not too wide."""
    tall = (widths / view.ratio[0]).round().long()  # the height at the narrowest aspect
    wide = (heights * view.ratio[1]).round().long()
    return torch.minimum(heights, tall).clamp(min=1), torch.minimum(widths, wide).clamp(min=1)


def uniforms(noise: Noise, index: Tensor, each: int) -> Tensor:
    """`each` numbers in [0, 1) for every sample of index (..., B): (..., B, each), from 24 random bits each."""
    runs = noise.first.numel()
    words = noise.words(index.numel() // runs * each).view(*index.shape, each)
    return ((words >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def _whole(chance: Tensor, count: Tensor | int) -> Tensor:
    """A whole number from 0 to count - 1."""
    return (chance * count).long()  # 24 bits times a small number stays below `count` in float32


def _flips(wanted: bool, chance: Tensor) -> Tensor:
    return chance < 0.5 if wanted else torch.zeros_like(chance, dtype=torch.bool)


def _steps(length: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where `size` pixels fall on `length` (...) others: the first of two neighbours and the weight of the second,
    (..., size). Pixels are squares with a value in the middle; nothing outside the window counts."""
    middle = torch.arange(size, device=length.device, dtype=torch.float32) + 0.5
    place = (middle * (length.to(torch.float32) / size)[..., None] - 0.5).clamp_(min=0)
    before = torch.minimum(place.long(), (length - 1)[..., None])
    return before, place - before


def _sizes(pool: Pool, index: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(pool, Ragged):
        return pool.height[index], pool.width[index]
    return torch.full_like(index, pool.shape[1]), torch.full_like(index, pool.shape[2])


def _places(pool: Pool, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All pixels (P, C), and of each image at index the first pixel's place and the pixels in a row."""
    if isinstance(pool, Ragged):
        return pool.pixels, pool.start[index], pool.width[index]
    height, width = pool.shape[1:3]
    return pool.reshape(-1, pool.shape[3]), index * (height * width), torch.full_like(index, width)


def _window(pool: Pool, index: Tensor, top: Tensor, left: Tensor, height: int, width: int, flip: Tensor) -> Tensor:
    """height x width pixels from (top, left) on, mirrored where `flip` says so; black outside the image."""
    heights, widths = _sizes(pool, index)
    pixels, start, stride = _places(pool, index)
    row = top[..., None] + torch.arange(height, device=index.device)
    step = torch.arange(width, device=index.device)
    column = left[..., None] + torch.where(flip[..., None], width - 1 - step, step)
    there = ((row >= 0) & (row < heights[..., None]))[..., :, None]
    there = there & ((column >= 0) & (column < widths[..., None]))[..., None, :]
    place = (start[..., None] + row * stride[..., None])[..., :, None] + column[..., None, :]
    place = torch.where(there, place, 0)
    return pixels.index_select(0, place.flatten()).unflatten(0, place.shape).mul_(there[..., None])
