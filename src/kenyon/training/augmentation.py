"""Augmentation: random windows of images, cut on the device for all samples at once.

The windows of a run are a function of its own noise: they do not depend on other runs. All shapes are known in
advance and nothing is read back, so that a CUDA graph can hold the work.

On a GPU two Triton kernels read and write every pixel once: windows of images of one size (some thirty small PyTorch
operations take a tenth of a step of a network with 57 million weights), and bilinear interpolation (whose plain
version needs some 10 GB for 320 photographs of 224 pixels and eight channels). Without Triton the plain versions
serve.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kenyon.backends.triton.fused import works
from kenyon.data.tasks import Augmentation, CentreCrop, Crop, Pool, Ragged, ResizedCrop, Testing
from kenyon.random import Noise, mix_words
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

TILE = 2048  # numbers that a program makes


def available(pool: Tensor) -> bool:
    return triton is not None and pool.dtype == torch.uint8 and pool.is_contiguous() and works(pool.device)


def cropped(view: Crop, pool: Tensor, index: Tensor, noise: Noise) -> Tensor:
    """Cut windows of images (N, H, W, C) at index (..., B), uint8 (..., B, H, W, C), as `crop` does."""
    (H, W, C), runs = pool.shape[1:], noise.first.numel()
    out = pool.new_empty((*index.shape, H, W, C))
    several = triton.next_power_of_2(C)
    each = max(1, TILE // several)
    with torch.cuda.device(pool.get_device()):
        _cut[(index.numel(), -(-H * W // each))](
            pool, index.contiguous(), noise.first.contiguous(), noise.second.contiguous(), out,
            index.numel() // runs, view.padding, view.flip, H, W, C, each, several, num_warps=4,
        )  # fmt: skip
    return out


@jit
def _chance(place: tensor, first: tensor, second: tensor) -> tensor:
    """Return a number in [0, 1), as `uniforms` draws it."""
    word = mix_words(mix_words(place + first) ^ second)
    return ((word >> 8) & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216)


@jit
def _cut(
    pool: tensor, index: tensor, firsts: tensor, seconds: tensor, out: tensor,
    SHARE: constexpr, PADDING: constexpr, FLIP: constexpr,
    H: constexpr, W: constexpr, C: constexpr, EACH: constexpr, WIDE: constexpr,
) -> None:  # fmt: skip
    """Cut a part of one image; every run has SHARE of them."""
    image = tl.program_id(0)
    first, second = tl.load(firsts + image // SHARE), tl.load(seconds + image // SHARE)
    place = image % SHARE * 3
    top = (_chance(place, first, second) * (2 * PADDING + 1)).to(tl.int32) - PADDING
    left = (_chance(place + 1, first, second) * (2 * PADDING + 1)).to(tl.int32) - PADDING
    at = tl.program_id(1) * EACH + tl.arange(0, EACH)  # pixels of the window
    row, column = top + at // W, at % W
    if FLIP:
        column = tl.where(_chance(place + 2, first, second) < 0.5, W - 1 - column, column)
    column += left
    there = (row >= 0) & (row < H) & (column >= 0) & (column < W)  # the rest is black
    c = tl.arange(0, WIDE)[None, :]
    begin = tl.load(index + image) * (H * W)
    pixel = (begin + row * W + column)[:, None] * C + c
    x = tl.load(pool + pixel, mask=there[:, None] & (c < C), other=0)
    to = (image.to(tl.int64) * (H * W) + at)[:, None] * C + c
    tl.store(out + to, x, mask=(at < H * W)[:, None] & (c < C))


BILINEAR_TILE = 1024  # numbers that a program makes

# Of each row, or column, of the result: the places of two neighbours, and the weight of the second.
Between = tuple[Tensor, Tensor, Tensor]  # (..., S)


def bilinear_available(pixels: Tensor) -> bool:
    return triton is not None and pixels.dtype == torch.uint8 and works(pixels.device)


def bilinear(pixels: Tensor, rows: Between, columns: Between) -> Tensor:
    """Interpolate pixels (P, C) to uint8 (..., H, W, C), rounded: a pixel's position is the start of its row plus its
    column.
    """
    return (
        _in_one_pass(pixels, rows, columns) if bilinear_available(pixels) else bilinear_plain(pixels, rows, columns)
    )


def bilinear_plain(pixels: Tensor, rows: Between, columns: Between) -> Tensor:
    upper, lower, down = rows
    left, right, across = columns

    def at(row: Tensor, column: Tensor) -> Tensor:
        place = row[..., :, None] + column[..., None, :]
        return pixels.index_select(0, place.flatten()).unflatten(0, place.shape).to(torch.float32)

    across = across[..., None, :, None]
    above, below = (torch.lerp(at(row, left), at(row, right), across) for row in (upper, lower))
    return torch.lerp(above, below, down[..., :, None, None]).add_(0.5).to(torch.uint8)


def _in_one_pass(pixels: Tensor, rows: Between, columns: Between) -> Tensor:
    H, W, C = rows[0].shape[-1], columns[0].shape[-1], pixels.shape[1]
    out = pixels.new_empty((*rows[0].shape, W, C))
    several = triton.next_power_of_2(C)
    each = max(1, BILINEAR_TILE // several)
    grid = (out.numel() // (H * W * C), -(-H * W // each))
    flat = [part.contiguous() for part in (*rows, *columns)]
    with torch.cuda.device(pixels.get_device()):
        _blend[grid](pixels.contiguous(), *flat, out, H, W, C, each, several, num_warps=4)
    return out


@jit
def _between(a: tensor, b: tensor, weight: tensor) -> tensor:
    """Interpolate as torch.lerp does."""
    return tl.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))


@jit
def _blend(
    pixels: tensor, upper: tensor, lower: tensor, down: tensor, left: tensor, right: tensor, across: tensor,
    out: tensor, H: constexpr, W: constexpr, C: constexpr, EACH: constexpr, WIDE: constexpr,
) -> None:  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * EACH + tl.arange(0, EACH)  # pixels of the image
    there = at < H * W
    row, column = image * H + at // W, image * W + at % W
    above, below = tl.load(upper + row, mask=there, other=0), tl.load(lower + row, mask=there, other=0)
    before, behind = tl.load(left + column, mask=there, other=0), tl.load(right + column, mask=there, other=0)
    c = tl.arange(0, WIDE)[None, :]
    mask = there[:, None] & (c < C)
    w = tl.load(across + column, mask=there, other=0.0)[:, None]
    a = tl.load(pixels + (above + before)[:, None] * C + c, mask=mask, other=0).to(tl.float32)
    b = tl.load(pixels + (above + behind)[:, None] * C + c, mask=mask, other=0).to(tl.float32)
    first = _between(a, b, w)
    a = tl.load(pixels + (below + before)[:, None] * C + c, mask=mask, other=0).to(tl.float32)
    b = tl.load(pixels + (below + behind)[:, None] * C + c, mask=mask, other=0).to(tl.float32)
    second = _between(a, b, w)
    found = _between(first, second, tl.load(down + row, mask=there, other=0.0)[:, None]) + 0.5
    tl.store(out + (image * (H * W) + at)[:, None] * C + c, found.to(tl.uint8), mask=mask)


TRIES = 10  # windows drawn before a ResizedCrop gives up and takes the middle


def augmented(view: Augmentation | Testing, pool: Pool, index: Tensor, noise: Noise | None = None) -> Tensor:
    """Return the pool's images at index (..., B) as the view shows them: uint8 (..., B, H, W, C).

    The pool has its channel last, (N, H, W, C), or is ragged. `noise` belongs to the step: its R runs have equal
    shares of the samples in order, so that (B,) goes with one run and (R, B) with R.
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
    return cropped(view, pool, index, noise) if available(pool) else crop_plain(view, pool, index, noise)


def crop_plain(view: Crop, pool: Tensor, index: Tensor, noise: Noise) -> Tensor:
    height, width = pool.shape[1:3]
    chance = uniforms(noise, index, 3)
    places = 2 * view.padding + 1
    top, left = (_whole(chance[..., i], places) - view.padding for i in (0, 1))
    return _window(pool, index, top, left, height, width, _flips(view.flip, chance[..., 2]))


def centre_crop(view: CentreCrop, pool: Pool, index: Tensor) -> Tensor:
    """Cut the center; where the image is smaller than the window, the rest is black."""
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
    """Return windows (top, left, height, width) in images of the given sizes (...), from uniform numbers (..., 2
    TRIES + 2): of TRIES windows of random area and aspect the first that fits; if none does, the largest centered
    window with an allowed aspect.
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
    """Return the size of the largest centered window with an allowed aspect."""
    tall = (widths / view.ratio[0]).round().long()  # the height at the narrowest aspect
    wide = (heights * view.ratio[1]).round().long()
    return torch.minimum(heights, tall).clamp(min=1), torch.minimum(widths, wide).clamp(min=1)


def uniforms(noise: Noise, index: Tensor, each: int) -> Tensor:
    """Draw `each` numbers in [0, 1) for every sample of index (..., B): (..., B, each), from 24 random bits each."""
    runs = noise.first.numel()
    words = noise.words(index.numel() // runs * each).view(*index.shape, each)
    return ((words >> 8) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)


def _whole(chance: Tensor, count: Tensor | int) -> Tensor:
    """Return a whole number from 0 to count - 1."""
    return (chance * count).long()  # 24 bits times a small number stays below `count` in float32


def _flips(wanted: bool, chance: Tensor) -> Tensor:
    return chance < 0.5 if wanted else torch.zeros_like(chance, dtype=torch.bool)


def _steps(length: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return where `size` pixels fall on `length` (...) others: the first of two neighbors and the weight of the
    second, (..., size). Pixels are squares with a value in the middle; nothing outside the window counts.
    """
    middle = torch.arange(size, device=length.device, dtype=torch.float32) + 0.5
    place = (middle * (length.to(torch.float32) / size)[..., None] - 0.5).clamp_(min=0)
    before = torch.minimum(place.long(), (length - 1)[..., None])
    return before, place - before


def _sizes(pool: Pool, index: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(pool, Ragged):
        return pool.height[index], pool.width[index]
    return torch.full_like(index, pool.shape[1]), torch.full_like(index, pool.shape[2])


def _places(pool: Pool, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all pixels (P, C), and of each image at index the position of its first pixel and its row length."""
    if isinstance(pool, Ragged):
        return pool.pixels, pool.start[index], pool.width[index]
    height, width = pool.shape[1:3]
    return pool.reshape(-1, pool.shape[3]), index * (height * width), torch.full_like(index, width)


def _window(pool: Pool, index: Tensor, top: Tensor, left: Tensor, height: int, width: int, flip: Tensor) -> Tensor:
    """Return height x width pixels from (top, left), mirrored where `flip` is True; black outside the image."""
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
