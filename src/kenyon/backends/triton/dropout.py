"""Dropout of vectors in one pass over memory, forward and backward, on a GPU.

`dropped` takes the random bytes of one run. `relu_dropout`, for all runs and learners, draws them where they are
used, from the keys of the step (see `random.Noise`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.layers import DropoutSite
from kenyon.backends.triton.fused import works
from kenyon.random import Noise, mix_words
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

BLOCK = 1024


def available(x: Tensor) -> bool:
    return (
        triton is not None
        and x.dtype in (torch.bfloat16, torch.float32)
        and 0 < x.numel() < 2**31
        and works(x.device)
    )


def dropped(x: Tensor, noise: Tensor, site: DropoutSite) -> Tensor:
    """Return x (K, B, F) without the units whose bytes in `noise` (B, padded(K * F)) are below the threshold."""
    if available(x):
        return _Dropped.apply(x, noise, site)  # type: ignore[no-untyped-call]
    return dropped_plain(x, noise, site)


def dropped_plain(x: Tensor, noise: Tensor, site: DropoutSite) -> Tensor:
    K, F = len(x), x.shape[-1]
    keep = (noise >= site.threshold)[:, : K * F]
    return x * keep.unflatten(1, (K, F)).transpose(0, 1) * site.scale


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Tensor, site: DropoutSite) -> Tensor:
        ctx.site = site
        ctx.save_for_backward(noise)
        return _passed(x, noise, site)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        [noise] = ctx.saved_tensors
        return _passed(dy, noise, ctx.site), None, None


def _passed(x: Tensor, noise: Tensor, site: DropoutSite) -> Tensor:
    x = x.contiguous()
    _, B, F = x.shape
    y, size = torch.empty_like(x), x.numel()
    with torch.cuda.device(x.get_device()):
        _pass[(-(-size // BLOCK),)](
            x, noise, y, size, B, F, noise.stride(0), site.threshold, site.scale, BLOCK, num_warps=4
        )
    return y


@jit
def _pass(
    x: tensor, noise: tensor, y: tensor, size: tensor, B: tensor, F: tensor, stride: tensor,
    threshold: tensor, scale: tensor, BLOCK: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    byte = tl.load(noise + at // F % B * stride + at // (F * B) * F + at % F, mask=mask, other=0)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * (byte >= threshold).to(tl.float32)
    tl.store(y + at, (value * scale).to(y.dtype.element_ty), mask=mask)


def units_available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda


def relu_dropout(x: Tensor, noise: Noise | None, site: DropoutSite | None, start: int) -> Tensor:
    """Return dropout(relu(x)) for x (R, K, B, F), in float32. The site's bytes begin at byte `start` of the noise."""
    if not units_available(x):
        return relu_dropout_plain(x, noise, site, start)
    return _Units.apply(x, noise, site, start)  # type: ignore[no-untyped-call]


def relu_dropout_plain(x: Tensor, noise: Noise | None, site: DropoutSite | None, start: int) -> Tensor:
    y = F.relu(x).float()
    return y if noise is None or site is None else y * kept_units(noise, site, start, x.shape) * site.scale


def kept_units(noise: Noise, site: DropoutSite, start: int, shape: torch.Size) -> Tensor:
    """Return a mask of the units (R, K, B, F) that a dropout keeps, from bytes (B, padded(K * F)) of every run."""
    R, K, B, units = shape
    wide = site.shape[0]
    drawn = noise.bytes(B * wide, start).view(R, B, wide)[..., : K * units]
    return (drawn >= site.threshold).view(R, B, K, units).transpose(1, 2)


class _Units(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Noise | None, site: DropoutSite | None, start: int) -> Tensor:
        x = x.contiguous()
        R, K, B, units = x.shape
        y = torch.empty(x.shape, device=x.device)
        drops = noise is not None and site is not None
        keys = (noise.first, noise.second) if noise is not None else (x, x)
        threshold, scale, wide = (site.threshold, site.scale, site.shape[0]) if site and drops else (0, 1.0, 0)
        size = K * B * units
        grid = (-(-size // BLOCK), R)
        _forward[grid](x, y, *keys, size, B, units, wide, start, threshold, scale, drops, BLOCK, num_warps=4)
        ctx.save_for_backward(y)
        ctx.scale, ctx.dtype = scale, x.dtype
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        dy = dy.contiguous()
        dx = torch.empty(y.shape, dtype=ctx.dtype, device=y.device)
        _backward[(-(-y.numel() // BLOCK),)](dy, y, dx, y.numel(), ctx.scale, BLOCK, num_warps=4)
        return dx, None, None, None


@jit
def _forward(
    x: tensor, y: tensor, first: tensor, second: tensor, size: tensor, B: tensor, F: tensor, wide: tensor,
    start: tensor, threshold: tensor, scale: tensor, DROPS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = run.to(tl.int64) * size + at
    value = tl.load(x + to, mask=at < size, other=0.0).to(tl.float32)
    value = tl.where(value < 0, 0.0, value)  # keeps nan
    if DROPS:
        unit, sample, learner = at % F, at // F % B, at // (F * B)
        place = start + sample * wide + learner * F + unit
        word = mix_words(mix_words(place // 4 + tl.load(first + run)) ^ tl.load(second + run))
        byte = (word >> (place % 4 * 8)) & 255
        value = tl.where(byte >= threshold, value * scale, 0.0)
    tl.store(y + to, value, mask=at < size)


@jit
def _backward(dy: tensor, y: tensor, dx: tensor, size: tensor, scale: tensor, BLOCK: constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(dy + at, mask=at < size, other=0.0)
    open_ = tl.load(y + at, mask=at < size, other=0.0) != 0
    tl.store(dx + at, tl.where(open_, value * scale, 0.0).to(dx.dtype.element_ty), mask=at < size)
