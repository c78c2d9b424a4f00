"""The windows of a convolution as rows of a matrix, in Triton; and weights in the order of such rows.

Activations are (N, C, H, W) in channels_last memory with C a multiple of 8. A row holds its window tap by tap, with
the channels of a tap contiguous: copies move 8 channels at a time, 16 bytes in bfloat16, and the rows suit the tensor
cores. In the backward pass each element sums the rows that hold it, in float32 and in a fixed order: no atomics, so
that sums repeat exactly. The plain versions are used where Triton is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padding_of
from kenyon.backends.triton.fused import works
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

BLOCK, WARPS = 1024, 4  # elements of a program, 8 per thread


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride and padding of a convolution, as (down, right)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    @staticmethod
    def of(layer: nn.Conv2d) -> Geometry:
        padding = padding_of(layer)
        assert padding is not None and layer.dilation == (1, 1)
        (h, w), (down, right) = layer.kernel_size, layer.stride
        return Geometry((h, w), (down, right), padding)

    def places(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of windows of a map, as (down, right)."""
        sides = zip((height, width), self.padding, self.kernel, self.stride, strict=True)
        down, right = ((side + 2 * around - kernel) // stride + 1 for side, around, kernel, stride in sides)
        return down, right

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]


def available(x: Tensor) -> bool:
    return (
        triton is not None
        and x.dtype in (torch.bfloat16, torch.float32)
        and 0 < x.numel() < 2**31
        and works(x.device)
    )


def windows(x: Tensor, geometry: Geometry) -> Tensor:
    """Return the windows of x (N, C, H, W) as rows (N * H' * W', h * w * C)."""
    down, right = geometry.places(*x.shape[2:])
    size = len(x) * down * right * geometry.taps * x.shape[1]
    if available(x) and x.shape[1] % 8 == 0 and size < 2**31:
        return _Windows.apply(x, geometry)  # type: ignore[no-untyped-call]
    return windows_plain(x, geometry)


def windows_plain(x: Tensor, geometry: Geometry) -> Tensor:
    (h, w), (down, right), (above, left) = geometry.kernel, geometry.stride, geometry.padding
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, above, above))
    taken = pixels.unfold(1, h, down).unfold(2, w, right)  # (N, H', W', C, h, w)
    return taken.permute(0, 1, 2, 4, 5, 3).reshape(taken.shape[:3].numel(), -1)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        N, C, H, W = x.shape
        down, right = geometry.places(H, W)
        ctx.shape, ctx.constants = x.shape, (C, H, W, down, right, *_numbers(geometry))
        rows = x.new_empty((N * down * right, geometry.taps * C))
        _run(_lay, rows, x, rows, rows.numel(), *ctx.constants)
        return rows

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        N, C, H, W = ctx.shape
        dx = gradient.new_empty((N, H, W, C))
        _run(_gather, dx, gradient.contiguous(), dx, dx.numel(), *ctx.constants)
        return dx.permute(0, 3, 1, 2), None


def packed(weight: Tensor, inputs: int, outputs: int, dtype: torch.dtype) -> Tensor:
    """Return weights (K, O, I, h, w) in the order of rows and in another type, (K, outputs, h * w * inputs), padded
    with zeros beyond O and I.
    """
    K, O, I, h, w = weight.shape  # noqa: E741
    weight = weight.contiguous()
    rows = weight.new_empty((K, outputs, h * w * inputs), dtype=dtype)
    if not available(weight) or not available(rows):
        return packed_plain(weight, inputs, outputs, dtype)
    _run(_pack, rows, weight, rows, rows.numel(), O, I, h * w, outputs, inputs)
    return rows


def packed_plain(weight: Tensor, inputs: int, outputs: int, dtype: torch.dtype) -> Tensor:
    each = weight.to(dtype).permute(0, 1, 3, 4, 2)
    return F.pad(each, (0, inputs - each.shape[4], 0, 0, 0, 0, 0, outputs - each.shape[1])).flatten(2)


def unpacked(rows: Tensor, shape: torch.Size, memory: Tensor | None = None) -> Tensor:
    """Invert `packed` for gradients, (K, outputs, h * w * inputs) -> (K, O, I, h, w), into `memory` if given."""
    _, O, I, h, w = shape  # noqa: E741
    weight = rows.new_empty(shape) if memory is None else memory
    outputs, inputs = rows.shape[1], rows.shape[2] // (h * w)
    if not available(rows) or not weight.is_contiguous():
        return weight.copy_(unpacked_plain(rows, shape))
    _run(_unpack, weight, rows.contiguous(), weight, weight.numel(), O, I, h * w, outputs, inputs)
    return weight


def unpacked_plain(rows: Tensor, shape: torch.Size) -> Tensor:
    K, O, I, h, w = shape  # noqa: E741
    return rows.view(K, rows.shape[1], h, w, -1)[:, :O, ..., :I].permute(0, 1, 4, 2, 3)


def _numbers(geometry: Geometry) -> tuple[int, ...]:
    return (*geometry.kernel, *geometry.stride, *geometry.padding)


def _run(kernel: Any, over: Tensor, *arguments: Any) -> None:
    with torch.cuda.device(over.get_device()):
        kernel[(-(-over.numel() // BLOCK),)](*arguments, BLOCK, num_warps=WARPS)


@jit
def _lay(
    x: tensor, rows: tensor, size: tensor,
    C: constexpr, H: constexpr, W: constexpr, DOWN: constexpr, RIGHT: constexpr,
    h: constexpr, w: constexpr, SY: constexpr, SX: constexpr, PY: constexpr, PX: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, tap, c = e // (h * w * C), e // C % (h * w), e % C
    iy = row // RIGHT % DOWN * SY + tap // w - PY
    ix = row % RIGHT * SX + tap % w - PX
    inside = (e < size) & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
    value = tl.load(x + ((row // (RIGHT * DOWN) * H + iy) * W + ix) * C + c, mask=inside, other=0.0)
    tl.store(rows + e, value, mask=e < size)


@jit
def _gather(
    rows: tensor, dx: tensor, size: tensor,
    C: constexpr, H: constexpr, W: constexpr, DOWN: constexpr, RIGHT: constexpr,
    h: constexpr, w: constexpr, SY: constexpr, SX: constexpr, PY: constexpr, PX: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, c = e // C, e % C
    y, x = pixel // W % H + PY, pixel % W + PX
    first = pixel // (W * H) * DOWN
    total = tl.zeros([BLOCK], tl.float32)
    for above in tl.static_range((h + SY - 1) // SY):  # the windows that hold this pixel, from the last to the first
        oy = y // SY - above
        i = y - oy * SY
        in_row = (e < size) & (oy >= 0) & (oy < DOWN) & (i < h)
        for before in tl.static_range((w + SX - 1) // SX):
            ox = x // SX - before
            j = x - ox * SX
            mask = in_row & (ox >= 0) & (ox < RIGHT) & (j < w)
            place = ((first + oy) * RIGHT + ox) * (h * w * C) + (i * w + j) * C + c
            total += tl.load(rows + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx + e, total.to(dx.dtype.element_ty), mask=e < size)


@jit
def _pack(
    weight: tensor, rows: tensor, size: tensor,
    O: constexpr, I: constexpr, T: constexpr, OUTPUTS: constexpr, INPUTS: constexpr, BLOCK: constexpr,  # noqa: E741
) -> None:  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, tap = e % INPUTS, e // INPUTS % T
    o, k = e // (INPUTS * T) % OUTPUTS, e // (INPUTS * T * OUTPUTS)
    mask = (e < size) & (c < I) & (o < O)
    value = tl.load(weight + ((k * O + o) * I + c) * T + tap, mask=mask, other=0.0)
    tl.store(rows + e, value.to(rows.dtype.element_ty), mask=e < size)


@jit
def _unpack(
    rows: tensor, weight: tensor, size: tensor,
    O: constexpr, I: constexpr, T: constexpr, OUTPUTS: constexpr, INPUTS: constexpr, BLOCK: constexpr,  # noqa: E741
) -> None:  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap, c = e % T, e // T % I
    o, k = e // (T * I) % O, e // (T * I * O)
    value = tl.load(rows + ((k * OUTPUTS + o) * T + tap) * INPUTS + c, mask=e < size, other=0.0)
    tl.store(weight + e, value, mask=e < size)
