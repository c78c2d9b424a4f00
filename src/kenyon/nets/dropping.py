"""Dropout of vectors whose random bytes are at hand, in one pass each way where there is a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kenyon.kernels import jit
from kenyon.nets.dropout import DropoutSite
from kenyon.nets.fused import works

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


def dropped(x: Tensor, piece: Tensor, site: DropoutSite) -> Tensor:
    """x (K, B, F) without the units whose bytes in `piece` (B, padded(K * F)) are below the threshold."""
    if available(x):
        return _Dropped.apply(x, piece, site)  # type: ignore[no-untyped-call]
    return dropped_plain(x, piece, site)


def dropped_plain(x: Tensor, piece: Tensor, site: DropoutSite) -> Tensor:
    K, F = len(x), x.shape[-1]
    keep = (piece >= site.threshold)[:, : K * F]
    return x * keep.unflatten(1, (K, F)).transpose(0, 1) * site.scale


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Tensor, site: DropoutSite) -> Tensor:
        ctx.site = site
        ctx.save_for_backward(piece)
        return _passed(x, piece, site)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        [piece] = ctx.saved_tensors
        return _passed(dy, piece, ctx.site), None, None


def _passed(x: Tensor, piece: Tensor, site: DropoutSite) -> Tensor:
    x = x.contiguous()
    _, B, F = x.shape
    y, size = torch.empty_like(x), x.numel()
    with torch.cuda.device(x.get_device()):
        _pass[(-(-size // BLOCK),)](
            x, piece, y, size, B, F, piece.stride(0), site.threshold, site.scale, BLOCK, num_warps=4
        )
    return y


@jit
def _pass(
    x: tensor, piece: tensor, y: tensor, size: tensor, B: tensor, F: tensor, stride: tensor,
    threshold: tensor, scale: tensor, BLOCK: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    byte = tl.load(piece + at // F % B * stride + at // (F * B) * F + at % F, mask=there, other=0)
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) * (byte >= threshold).to(tl.float32)
    tl.store(y + at, (value * scale).to(y.dtype.element_ty), mask=there)
