"""Pixels between pixels: every one a mean of four neighbours, read and written once by a kernel in Triton.

The plain version, which serves where Triton is absent, makes a place of eight bytes for each of the four and numbers
of four bytes between them: of 320 photographs, 224 pixels wide and with eight channels, that is some 10 GB.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.kernels import jit
from kenyon.nets.fused import works

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

TILE = 1024  # numbers that a program makes

# Of each row, or column, of the result: the places of two neighbours, and the weight of the second.
Between = tuple[Tensor, Tensor, Tensor]  # (..., S)


def available(pixels: Tensor) -> bool:
    return triton is not None and pixels.dtype == torch.uint8 and works(pixels.device)


def bilinear(pixels: Tensor, rows: Between, columns: Between) -> Tensor:
    """uint8 (..., H, W, C), rounded, from pixels (P, C): where a row begins plus the column is a pixel's place."""
    return _in_one_pass(pixels, rows, columns) if available(pixels) else bilinear_plain(pixels, rows, columns)


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
    each = max(1, TILE // several)
    grid = (out.numel() // (H * W * C), -(-H * W // each))
    flat = [part.contiguous() for part in (*rows, *columns)]
    with torch.cuda.device(pixels.get_device()):
        _blend[grid](pixels.contiguous(), *flat, out, H, W, C, each, several, num_warps=4)
    return out


@jit
def _between(a: tensor, b: tensor, weight: tensor) -> tensor:
    """As torch.lerp."""
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
