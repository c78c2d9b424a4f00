"""Random windows of images of one size, read and written once by a kernel in Triton.

Where a window begins is a few operations on a few numbers for every image. As operations of a library, each takes
longer to begin than to do: for 64 small images, some thirty of them take a tenth of a step of a network with 57
million weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.hashing import mix_words
from kenyon.kernels import jit
from kenyon.nets.fused import works
from kenyon.random import Noise
from kenyon.streams.views import Crop

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
    """What `augment.crop` makes: windows of images (N, H, W, C) at index (..., B), uint8 (..., B, H, W, C)."""
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
    """A number in [0, 1), as `augment.uniforms` has it."""
    word = mix_words(mix_words(place + first) ^ second)
    return ((word >> 8) & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216)


@jit
def _cut(
    pool: tensor, index: tensor, firsts: tensor, seconds: tensor, out: tensor,
    SHARE: constexpr, PADDING: constexpr, FLIP: constexpr,
    H: constexpr, W: constexpr, C: constexpr, EACH: constexpr, WIDE: constexpr,
) -> None:  # fmt: skip
    """A part of one image; every run has SHARE of them."""
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
