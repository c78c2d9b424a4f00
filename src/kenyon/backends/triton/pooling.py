"""What follows a convolution of K learners, in one pass over memory: bias, ReLU and max-pooling in Triton.

Windows are square, without padding, and may overlap; windows of one pixel are no pooling. The pass takes maps in
either order, and can part joined ones (see `maps`). It keeps one byte for every result: which pixel of the window
has won. Backwards each pixel adds up what it has won, in a fixed order, and the programs leave sums for the bias's
gradient: no atomics, so that all repeats exactly. Values are rounded where the plain version rounds them, so that
both find the same maxima. The plain version serves where Triton is absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.triton.fused import PROGRAMS, TILE, WARPS, column_totals, works
from kenyon.backends.triton.maps import Maps, eights
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

LARGEST = 15  # side of a window: its pixels have numbers below NOBODY
NOBODY = 255


def available(maps: Maps, size: int) -> bool:
    x = maps.data
    parted = maps.learners * maps.batch * eights(maps.channels) * x.shape[2:].numel()  # may be more than joined
    return (
        triton is not None
        and size <= LARGEST
        and x.dtype in (torch.bfloat16, torch.float32)
        and 0 < max(x.numel(), parted) < 2**31
        and min(x.shape[2:]) >= size
        and works(x.device)
    )


def bias_relu_pool(
    maps: Maps, bias: Tensor, *, relu: bool, size: int = 1, stride: int = 1, part: bool = False
) -> Maps:
    """max_pool2d(relu(maps + bias), size, stride) with biases (K, C). `part`: the result is to be parted."""
    if not available(maps, size):
        return bias_relu_pool_plain(maps, bias, relu=relu, size=size, stride=stride, part=part)
    shape = _Shape.of(maps, part or maps.parted, size, stride)
    data = _Pool.apply(maps.data, bias, shape, relu)  # type: ignore[no-untyped-call]
    return replace(maps, data=data, parted=part or maps.parted)


def bias_relu_pool_plain(
    maps: Maps, bias: Tensor, *, relu: bool, size: int = 1, stride: int = 1, part: bool = False
) -> Maps:
    x = maps.biased(bias.to(maps.data.dtype))
    x = F.relu(x) if relu else x
    found = replace(maps, data=x if size == stride == 1 else F.max_pool2d(x, size, stride))
    return found.part() if part else found


@dataclass(frozen=True)
class _Shape:
    """How a pass finds its way. Joined maps that stay joined are those of one learner with all channels."""

    learners: int
    batch: int
    height: int
    width: int
    channels: int
    pixel: int  # from a pixel of the maps to the next ...
    learner: int  # ... and from a learner to the next; 0: behind all its pixels
    own: int  # channels of a pixel up to those of the next learner, ...
    last: int  # ... and from the last learner's on
    wide: int  # channels of a pixel of the result
    size: int
    stride: int

    @staticmethod
    def of(maps: Maps, part: bool, size: int, stride: int) -> _Shape:
        K, C, (B, wide, H, W) = maps.learners, maps.channels, maps.data.shape
        if not part:
            return _Shape(1, B, H, W, K * C, wide, 0, wide, wide, wide, size, stride)
        if maps.parted:
            return _Shape(K, B // K, H, W, C, wide, 0, wide, wide, wide, size, stride)
        return _Shape(K, B, H, W, C, wide, C, C, wide - (K - 1) * C, eights(C), size, stride)

    @property
    def down(self) -> int:
        return (self.height - self.size) // self.stride + 1

    @property
    def right(self) -> int:
        return (self.width - self.size) // self.stride + 1

    @property
    def constants(self) -> tuple[int, ...]:
        sides = (self.height, self.width, self.down, self.right)
        steps = (self.pixel, self.learner, self.own, self.last, self.wide)
        return (*sides, self.size, self.stride, self.channels, *steps)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, shape: _Shape, relu: bool) -> Tensor:
        ctx.of, ctx.x_shape, ctx.bias_shape, ctx.bias_type = shape, x.shape, bias.shape, bias.dtype
        x = x.contiguous(memory_format=torch.channels_last)
        y = x.new_empty((shape.learners * shape.batch, shape.down, shape.right, shape.wide))
        code = torch.empty(y.shape, dtype=torch.uint8, device=x.device)
        pixels = shape.batch * shape.down * shape.right
        W, R, blocks = _tile(shape.wide)
        grid = (-(-pixels // R), blocks, shape.learners)
        with torch.cuda.device(x.get_device()):
            _forward[grid](x, bias.contiguous(), y, code, pixels, *shape.constants, relu, R, W, num_warps=WARPS)
        ctx.save_for_backward(code)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (code,) = ctx.saved_tensors
        shape = ctx.of
        N, C, H, W_ = ctx.x_shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = dy.new_empty((N, H, W_, C))
        pixels = shape.batch * H * W_
        W, R, blocks = _tile(max(shape.own, shape.last))
        tiles = -(-pixels // R)
        each = -(-tiles * blocks * shape.learners // PROGRAMS)  # tiles of a program
        total = shape.learners * shape.channels
        partial = torch.empty((-(-tiles // each), total), dtype=torch.float32, device=dy.device)
        with torch.cuda.device(dy.get_device()):
            _backward[(len(partial), blocks, shape.learners)](
                dy, code, dx, partial, pixels, each, *shape.constants, R, W, num_warps=WARPS
            )
            db = column_totals(partial, ctx.bias_type)
        return dx.permute(0, 3, 1, 2), db.view(ctx.bias_shape), None, None


def _tile(channels: int) -> tuple[int, int, int]:
    """Channels and pixels of a tile, and blocks of channels, such that the fewest lanes idle."""
    W = min((128, 64, 32), key=lambda w: -(-channels // w) * w)
    return W, TILE // W, -(-channels // W)


@jit
def _forward(
    x: tensor, bias: tensor, y: tensor, code: tensor, pixels: tensor,
    H: constexpr, W_: constexpr, DOWN: constexpr, RIGHT: constexpr, SIZE: constexpr, STRIDE: constexpr,
    C: constexpr, PIXEL: constexpr, LEARNER: constexpr, OWN: constexpr, LAST: constexpr, WIDE: constexpr,
    RELU: constexpr, R: constexpr, W: constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(2)
    r = tl.program_id(0) * R + tl.arange(0, R)  # pixels of y
    c = tl.program_id(1) * W + tl.arange(0, W)
    there = r < pixels
    b = tl.load(bias + k * C + c, mask=c < C, other=0.0).to(x.dtype.element_ty).to(tl.float32)[None, :]
    corner = (r // (DOWN * RIGHT) * H + r // RIGHT % DOWN * STRIDE) * W_ + r % RIGHT * STRIDE
    own = k * LEARNER if LEARNER > 0 else k * (pixels // (DOWN * RIGHT)) * (H * W_ * PIXEL)
    window = x + own + corner[:, None] * PIXEL + c[None, :]
    mask = there[:, None] & (c < OWN)[None, :]
    best = tl.zeros([R, W], tl.float32)
    at = tl.zeros([R, W], tl.int32)
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            v = tl.load(window + (i * W_ + j) * PIXEL, mask=mask, other=0.0).to(tl.float32) + b
            v = v.to(x.dtype.element_ty).to(tl.float32)
            if i + j == 0:
                best = v
            else:  # the first of equals wins, and whatever is not a number
                larger = (v > best) | (v != v)
                best, at = tl.where(larger, v, best), tl.where(larger, i * SIZE + j, at)
    if RELU:  # after the maximum: the order does not matter
        at = tl.where(best <= 0, 255, at)
        best = tl.where(best <= 0, 0.0, best)
    to, mask = (k * pixels + r)[:, None] * WIDE + c[None, :], there[:, None] & (c < WIDE)[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), mask=mask)
    tl.store(code + to, at.to(tl.uint8), mask=mask)


@jit
def _backward(
    dy: tensor, code: tensor, dx: tensor, partial: tensor, pixels: tensor, EACH: constexpr,
    H: constexpr, W_: constexpr, DOWN: constexpr, RIGHT: constexpr, SIZE: constexpr, STRIDE: constexpr,
    C: constexpr, PIXEL: constexpr, LEARNER: constexpr, OWN: constexpr, LAST: constexpr, WIDE: constexpr,
    R: constexpr, W: constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(2)
    c = tl.program_id(1) * W + tl.arange(0, W)
    written = c < OWN if OWN == LAST else c < tl.where(k == tl.num_programs(2) - 1, LAST, OWN)
    own = k * LEARNER if LEARNER > 0 else k * pixels * PIXEL
    total = tl.zeros([R, W], tl.float32)
    for n in range(EACH):
        r = (n * tl.num_programs(0) + tl.program_id(0)) * R + tl.arange(0, R)  # pixels of dx
        y, x = r // W_ % H, r % W_
        image = k * (pixels // (H * W_)) + r // (H * W_)
        g = tl.zeros([R, W], tl.float32)
        for above in tl.static_range((SIZE + STRIDE - 1) // STRIDE):  # the windows that hold this pixel
            oy = y // STRIDE - above
            i = y - oy * STRIDE
            rightly = (r < pixels) & (oy >= 0) & (oy < DOWN) & (i < SIZE)
            for before in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
                ox = x // STRIDE - before
                j = x - ox * STRIDE
                here = rightly & (ox >= 0) & (ox < RIGHT) & (j < SIZE)
                mask = here[:, None] & (c < WIDE)[None, :]
                at = ((image * DOWN + oy) * RIGHT + ox)[:, None] * WIDE + c[None, :]
                won = tl.load(code + at, mask=mask, other=255).to(tl.int32) == (i * SIZE + j)[:, None]
                g += tl.where(won, tl.load(dy + at, mask=mask, other=0.0).to(tl.float32), 0.0)
        to = own + r[:, None] * PIXEL + c[None, :]
        tl.store(dx + to, g.to(dx.dtype.element_ty), mask=(r < pixels)[:, None] & written[None, :])
        total += g
    left = partial + (tl.program_id(0) * tl.num_programs(2) + k) * C + c
    tl.store(left, tl.sum(total, 0), mask=c < C)
