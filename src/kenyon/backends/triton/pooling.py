"""Maps of K learners, and bias, ReLU and max-pooling of them in one pass over memory in Triton.

Windows are square, without padding, and may overlap; windows of one pixel mean no pooling. The pass takes joined or
split maps and can split joined ones. It stores one byte per result: the index of the largest pixel in the window.
In the backward pass each pixel sums the gradients of the windows that it won, in a fixed order, and programs leave
partial sums of the bias gradient: no atomics, so that results repeat exactly. Values are rounded where the plain
version rounds them, so that both find the same maxima. The plain version is used where Triton is absent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.layers import padded, padded_to_eight
from kenyon.backends.triton.fused import PROGRAMS, TILE, WARPS, column_totals, works
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

LARGEST = 15  # side of a window: the indices of its pixels are below 255, which stands for none of them


@dataclass(frozen=True)
class Maps:
    """Outputs of convolutions of K learners, in channels_last memory. Additional channels are zero.

    Joined: (B, padded(K*C), H, W), the learners' channels one after another, for one convolution of all learners.
    Split: (K*B, padded_to_eight(C), H, W), learner after learner, for batched products.
    Shared: (B, C, H, W), or samples of any other shape, before the first layer of the learners.
    """

    data: Tensor
    learners: int
    channels: int  # of one learner
    is_split: bool = False
    shared: bool = False

    @property
    def batch(self) -> int:
        return len(self.data) // self.learners if self.is_split else len(self.data)

    def split(self) -> Maps:
        """Return joined or split maps as split maps."""
        if self.is_split:
            return self
        each = self.data[:, : self.learners * self.channels].permute(0, 2, 3, 1)  # (B, H, W, K*C)
        each = each.unflatten(3, (self.learners, self.channels)).permute(3, 0, 1, 2, 4)
        each = F.pad(each, (0, padded_to_eight(self.channels) - self.channels)).contiguous()
        return Maps(each.flatten(0, 1).permute(0, 3, 1, 2), self.learners, self.channels, is_split=True)

    def join(self) -> Maps:
        """Return split maps as joined maps, others as they are."""
        if not self.is_split:
            return self
        each = self._of_learners().permute(1, 3, 4, 0, 2).flatten(3)  # (B, H, W, K*C)
        each = F.pad(each, (0, padded(each.shape[3]) - each.shape[3])).contiguous()
        return Maps(each.permute(0, 3, 1, 2), self.learners, self.channels)

    def flat(self) -> Tensor:
        """Return vectors (K, B, C*H*W), each learner's features in PyTorch's order."""
        if self.shared:
            return self.data.flatten(1).expand(self.learners, -1, -1)
        if self.is_split:
            return self._of_learners().flatten(2)
        used = self.data[:, : self.learners * self.channels]
        return used.unflatten(1, (self.learners, self.channels)).transpose(0, 1).flatten(2)

    def biased(self, bias: Tensor) -> Tensor:
        """Return the data plus biases (K, C)."""
        if self.is_split:
            wide = F.pad(bias, (0, self.data.shape[1] - self.channels))  # (K, padded_to_eight(C))
            return self.data + wide.repeat_interleave(self.batch, 0)[..., None, None]
        flat = bias.reshape(-1)
        return self.data + F.pad(flat, (0, self.data.shape[1] - len(flat))).view(1, -1, 1, 1)

    def _of_learners(self) -> Tensor:
        """Return split maps as (K, B, C, H, W)."""
        data = self.data if self.data.shape[1] == self.channels else self.data[:, : self.channels]
        return data.unflatten(0, (self.learners, -1))


def available(maps: Maps, size: int) -> bool:
    x = maps.data
    split = maps.learners * maps.batch * padded_to_eight(maps.channels) * x.shape[2:].numel()  # may exceed x.numel()
    return (
        triton is not None
        and size <= LARGEST
        and x.dtype in (torch.bfloat16, torch.float32)
        and 0 < max(x.numel(), split) < 2**31
        and min(x.shape[2:]) >= size
        and works(x.device)
    )


def bias_relu_pool(
    maps: Maps, bias: Tensor, *, relu: bool, size: int = 1, stride: int = 1, split: bool = False
) -> Maps:
    """Return max_pool2d(relu(maps + bias), size, stride) with biases (K, C); `split`: as split maps."""
    if not available(maps, size):
        return bias_relu_pool_plain(maps, bias, relu=relu, size=size, stride=stride, split=split)
    shape = _Shape.of(maps, split or maps.is_split, size, stride)
    data = _Pool.apply(maps.data, bias, shape, relu)  # type: ignore[no-untyped-call]
    return replace(maps, data=data, is_split=split or maps.is_split)


def bias_relu_pool_plain(
    maps: Maps, bias: Tensor, *, relu: bool, size: int = 1, stride: int = 1, split: bool = False
) -> Maps:
    x = maps.biased(bias.to(maps.data.dtype))
    x = F.relu(x) if relu else x
    pooled = replace(maps, data=x if size == stride == 1 else F.max_pool2d(x, size, stride))
    return pooled.split() if split else pooled


@dataclass(frozen=True)
class _Shape:
    """Sizes and strides of a pass. Joined maps that stay joined count as one learner with all channels."""

    learners: int
    batch: int
    height: int
    width: int
    channels: int
    pixel: int  # stride from a pixel of the maps to the next
    learner: int  # stride from a learner to the next; 0: after all its pixels
    own: int  # channels of a pixel up to those of the next learner
    last: int  # channels of a pixel from the last learner's first one
    wide: int  # channels of a pixel of the result
    size: int
    stride: int

    @staticmethod
    def of(maps: Maps, split: bool, size: int, stride: int) -> _Shape:
        K, C, (B, wide, H, W) = maps.learners, maps.channels, maps.data.shape
        if not split:
            return _Shape(1, B, H, W, K * C, wide, 0, wide, wide, wide, size, stride)
        if maps.is_split:
            return _Shape(K, B // K, H, W, C, wide, 0, wide, wide, wide, size, stride)
        return _Shape(K, B, H, W, C, wide, C, C, wide - (K - 1) * C, padded_to_eight(C), size, stride)

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
    """Return the channels and pixels of a tile, and the number of blocks of channels, with the fewest idle lanes."""
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
    valid = r < pixels
    b = tl.load(bias + k * C + c, mask=c < C, other=0.0).to(x.dtype.element_ty).to(tl.float32)[None, :]
    corner = (r // (DOWN * RIGHT) * H + r // RIGHT % DOWN * STRIDE) * W_ + r % RIGHT * STRIDE
    own = k * LEARNER if LEARNER > 0 else k * (pixels // (DOWN * RIGHT)) * (H * W_ * PIXEL)
    window = x + own + corner[:, None] * PIXEL + c[None, :]
    mask = valid[:, None] & (c < OWN)[None, :]
    best = tl.zeros([R, W], tl.float32)
    at = tl.zeros([R, W], tl.int32)
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            v = tl.load(window + (i * W_ + j) * PIXEL, mask=mask, other=0.0).to(tl.float32) + b
            v = v.to(x.dtype.element_ty).to(tl.float32)
            if i + j == 0:
                best = v
            else:  # the first of equal values wins, and NaN wins over all
                larger = (v > best) | (v != v)
                best, at = tl.where(larger, v, best), tl.where(larger, i * SIZE + j, at)
    if RELU:  # after the maximum: the order does not matter
        at = tl.where(best <= 0, 255, at)
        best = tl.where(best <= 0, 0.0, best)
    to, mask = (k * pixels + r)[:, None] * WIDE + c[None, :], valid[:, None] & (c < WIDE)[None, :]
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
            in_row = (r < pixels) & (oy >= 0) & (oy < DOWN) & (i < SIZE)
            for before in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
                ox = x // STRIDE - before
                j = x - ox * STRIDE
                in_window = in_row & (ox >= 0) & (ox < RIGHT) & (j < SIZE)
                mask = in_window[:, None] & (c < WIDE)[None, :]
                at = ((image * DOWN + oy) * RIGHT + ox)[:, None] * WIDE + c[None, :]
                won = tl.load(code + at, mask=mask, other=255).to(tl.int32) == (i * SIZE + j)[:, None]
                g += tl.where(won, tl.load(dy + at, mask=mask, other=0.0).to(tl.float32), 0.0)
        to = own + r[:, None] * PIXEL + c[None, :]
        tl.store(dx + to, g.to(dx.dtype.element_ty), mask=(r < pixels)[:, None] & written[None, :])
        total += g
    left = partial + (tl.program_id(0) * tl.num_programs(2) + k) * C + c
    tl.store(left, tl.sum(total, 0), mask=c < C)
