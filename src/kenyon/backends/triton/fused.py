"""Bias, ReLU, 2x2 max-pooling and dropout after a convolution, in one pass over memory in Triton.

Activations are (B, C, H, W) in channels_last memory: for each pixel a row of C contiguous channels. A program
computes a block of channels of some rows. Backward passes have a bounded number of programs; each sums its share of
the bias gradient in float32, and a small kernel sums over programs: no atomics, so that results repeat exactly.
Values are rounded where the plain versions round them, so that both find the same maxima. The plain versions are used
where Triton is absent.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# A program holds TILE elements at a time: 8 per thread, 16 bytes in bfloat16. PROGRAMS bounds the programs of a
# backward pass and thus the partial sums; it is a constant, so that the order of summation is the same on every GPU.
TILE, WARPS, PROGRAMS = 2048, 8, 528


def available(x: Tensor) -> bool:
    """Return True if the kernels support x, the output of a convolution."""
    return (
        triton is not None
        and x.ndim == 4
        and x.shape[1] % 16 == 0
        and x.dtype in (torch.bfloat16, torch.float32)
        and 0 < x.numel() < 2**31
        and x.is_contiguous(memory_format=torch.channels_last)
        and works(x.device)
    )


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    """Return relu(x + bias), with the bias rounded to the type of x, in the memory of x.

    The backward pass of the operation that computed x must not need x; that of a convolution does not.
    """
    return _Relu.apply(x, bias)  # type: ignore[no-untyped-call]


def bias_relu_plain(x: Tensor, bias: Tensor) -> Tensor:
    return F.relu(x + bias.to(x.dtype).view(1, -1, 1, 1))


def bias_relu_pool_dropout(x: Tensor, bias: Tensor, noise: Tensor | None, threshold: int, scale: float) -> Tensor:
    """Return dropout(max_pool2d(relu(x + bias), 2)) for even H and W: (B, C, H, W) -> (B, C, H/2, W/2).

    A unit is kept, times `scale`, if its byte of `noise` (B, H/2, W/2, C) reaches `threshold`; without `noise`, all
    units are.
    """
    return _Pool.apply(x, bias, noise, threshold, scale)  # type: ignore[no-untyped-call]


def bias_relu_pool_dropout_plain(
    x: Tensor, bias: Tensor, noise: Tensor | None, threshold: int, scale: float
) -> Tensor:
    y = F.max_pool2d(bias_relu_plain(x, bias), 2)
    return y if noise is None else y * (noise >= threshold).movedim(-1, 1) * scale


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        _launch(_relu_forward, x, x, bias.contiguous())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.dtype = bias.dtype
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        (y,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(y, memory_format=torch.channels_last)
        return dx, _launch(_relu_backward, dy, dy, y, dx, sums=ctx.dtype)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, noise: Tensor | None, threshold: int, scale: float) -> Tensor:
        B, C, H, W = x.shape
        code = torch.empty((B, H // 2, W // 2, C), dtype=torch.uint8, device=x.device)
        random = code if noise is None else noise.contiguous()
        assert H % 2 == W % 2 == 0 and random.shape == code.shape and random.dtype == torch.uint8
        y = torch.empty_like(x[..., ::2, ::2], memory_format=torch.channels_last)
        tensors = (x, bias.contiguous(), random, y, code)
        _launch(_pool_forward, y, *tensors, threshold, scale, noise is not None, W // 2)
        ctx.save_for_backward(code)
        ctx.scale, ctx.dtype = 1.0 if noise is None else scale, bias.dtype
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (code,) = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        B, C, h, w = dy.shape
        dx = dy.new_empty((B, 2 * h, 2 * w, C)).movedim(-1, 1)
        return dx, _launch(_pool_backward, dy, dy, code, dx, ctx.scale, w, sums=ctx.dtype), None, None, None


def _launch(kernel: Any, over: Tensor, *arguments: Any, sums: torch.dtype | None = None) -> Tensor:
    """Run a kernel over the pixels and channels of a tensor; with `sums`, return the total of its programs' partial
    sums in that type.
    """
    C, pixels = over.shape[1], over.numel() // over.shape[1]
    W = 16 if C == 16 else min((128, 64, 32), key=lambda w: -(-C // w) * w)  # the fewest lanes idle
    R = TILE // W
    tiles, blocks = -(-pixels // R), -(-C // W)
    with torch.cuda.device(over.get_device()):
        if sums is None:
            kernel[(tiles, blocks)](*arguments, pixels, C, R, W, num_warps=WARPS)
            return over
        each = -(-tiles * blocks // PROGRAMS)  # tiles of a program
        partial = torch.empty((-(-tiles // each), C), dtype=torch.float32, device=over.device)
        kernel[(len(partial), blocks)](partial, *arguments, each, pixels, C, R, W, num_warps=WARPS)
        return column_totals(partial, sums)


def column_totals(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums (C,) of partial sums (programs, C)."""
    total = partial.new_empty(partial.shape[1], dtype=dtype)
    _column_sums[(-(-len(total) // 8),)](partial, total, *partial.shape, 256, num_warps=8)
    return total


@functools.cache
def works(device: torch.device) -> bool:
    """Return True if Triton can compile and run a kernel on this device; it needs a GPU and a C compiler."""
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    try:
        with torch.cuda.device(device):
            column_totals(torch.zeros(1, 16, device=device), torch.bfloat16)
    except Exception as error:
        warnings.warn(f"Triton does not work here; training will be slower: {error}", stacklevel=3)
        return False
    return True


@jit
def _relu_forward(x: tensor, bias: tensor, pixels: tensor, C: constexpr, R: constexpr, W: constexpr) -> None:
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.program_id(1) * W + tl.arange(0, W)
    mask, at = (r < pixels)[:, None] & (c < C)[None, :], x + r[:, None] * C + c[None, :]
    b = tl.load(bias + c, mask=c < C, other=0.0).to(x.dtype.element_ty).to(tl.float32)
    v = tl.load(at, mask=mask).to(tl.float32) + b[None, :]
    tl.store(at, tl.where(v <= 0, 0.0, v).to(x.dtype.element_ty), mask=mask)  # NaN stays NaN


@jit
def _relu_backward(
    partial: tensor, dy: tensor, y: tensor, dx: tensor,
    EACH: constexpr, pixels: tensor, C: constexpr, R: constexpr, W: constexpr,
) -> None:  # fmt: skip
    c = tl.program_id(1) * W + tl.arange(0, W)
    total = tl.zeros([R, W], tl.float32)
    for i in range(EACH):
        r = (i * tl.num_programs(0) + tl.program_id(0)) * R + tl.arange(0, R)
        mask, at = (r < pixels)[:, None] & (c < C)[None, :], r[:, None] * C + c[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(tl.load(y + at, mask=mask, other=0.0).to(tl.float32) <= 0, 0.0, g)
        tl.store(dx + at, g.to(dx.dtype.element_ty), mask=mask)
        total += g
    tl.store(partial + tl.program_id(0) * C + c, tl.sum(total, 0), mask=c < C)


@jit
def _biased(x: tensor, b: tensor, mask: tensor) -> tensor:
    return (tl.load(x, mask=mask).to(tl.float32) + b).to(x.dtype.element_ty).to(tl.float32)


@jit
def _larger(v: tensor, best: tensor, at: tensor, number: constexpr) -> tensor:
    return tl.maximum(best, v, tl.PropagateNan.ALL), tl.where(v > best, number, at)  # the first of equal values wins


@jit
def _pool_forward(
    x: tensor, bias: tensor, noise: tensor, y: tensor, code: tensor, threshold: tensor, scale: tensor,
    DROPOUT: constexpr, HALF: constexpr, pixels: tensor, C: constexpr, R: constexpr, W: constexpr,
) -> None:  # fmt: skip
    r = tl.program_id(0) * R + tl.arange(0, R)  # pixels of y; HALF is its width
    c = tl.program_id(1) * W + tl.arange(0, W)
    mask, to = (r < pixels)[:, None] & (c < C)[None, :], r[:, None] * C + c[None, :]
    b = tl.load(bias + c, mask=c < C, other=0.0).to(x.dtype.element_ty).to(tl.float32)[None, :]
    window = x + (2 * r + (r // HALF) * (2 * HALF))[:, None] * C + c[None, :]
    best = _biased(window, b, mask)
    right = _biased(window + C, b, mask)
    below = _biased(window + 2 * HALF * C, b, mask)
    across = _biased(window + (2 * HALF + 1) * C, b, mask)
    best, at = _larger(right, best, tl.zeros([R, W], tl.int32), 1)
    best, at = _larger(below, best, at, 2)
    best, at = _larger(across, best, at, 3)
    at = tl.where(best <= 0, 4, at)  # ReLU, after the maximum: the order does not matter. 4: no gradient
    best = tl.where(best <= 0, 0.0, best)
    if DROPOUT:
        keep = tl.load(noise + to, mask=mask, other=0).to(tl.int32) >= threshold
        best = best * tl.where(keep, scale, 0.0)
        at = tl.where(keep, at, 4)
    tl.store(y + to, best.to(y.dtype.element_ty), mask=mask)
    tl.store(code + to, at.to(tl.uint8), mask=mask)


@jit
def _pool_backward(
    partial: tensor, dy: tensor, code: tensor, dx: tensor, scale: tensor,
    HALF: constexpr, EACH: constexpr, pixels: tensor, C: constexpr, R: constexpr, W: constexpr,
) -> None:  # fmt: skip
    c = tl.program_id(1) * W + tl.arange(0, W)
    total = tl.zeros([R, W], tl.float32)
    for i in range(EACH):
        r = (i * tl.num_programs(0) + tl.program_id(0)) * R + tl.arange(0, R)
        mask, to = (r < pixels)[:, None] & (c < C)[None, :], r[:, None] * C + c[None, :]
        at = tl.load(code + to, mask=mask, other=4).to(tl.int32)
        g = (tl.load(dy + to, mask=mask, other=0.0).to(tl.float32) * scale).to(dx.dtype.element_ty)
        window = dx + (2 * r + (r // HALF) * (2 * HALF))[:, None] * C + c[None, :]
        for k in tl.static_range(4):
            place = window + (k % 2 + (k // 2) * 2 * HALF) * C
            tl.store(place, tl.where(at == k, g, 0.0).to(dx.dtype.element_ty), mask=mask)
        total += tl.where(at < 4, g, 0.0).to(tl.float32)
    tl.store(partial + tl.program_id(0) * C + c, tl.sum(total, 0), mask=c < C)


@jit
def _column_sums(partial: tensor, total: tensor, P: constexpr, C: constexpr, R: constexpr) -> None:
    c = tl.program_id(0) * 8 + tl.arange(0, 8)
    sums = tl.zeros([R, 8], tl.float32)
    for start in range(0, P, R):
        r = start + tl.arange(0, R)
        mask = (r < P)[:, None] & (c < C)[None, :]
        sums += tl.load(partial + r[:, None] * C + c[None, :], mask=mask, other=0.0)
    tl.store(total + c, tl.sum(sums, 0).to(total.dtype.element_ty), mask=c < C)
