"""Cross-entropy of a batch; on a GPU, value and gradient in one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.utils.determinism import per_run
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

TILE = 2048  # numbers that a program holds
MOST = 2**14  # classes, at most: one program holds all of them
NO_CLASS = -1e9  # logit of a class that a smaller task does not have


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype is torch.float32


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of every sample, (..., B), of logits (..., B, C) and labels (..., B)."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


def weighted_cross_entropy_plain(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    return (cross_entropy(logits, labels) * weight).sum(-1)


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Return the sum over samples with weights (..., B): (...)."""
    if not available(logits) or logits.shape[-1] > MOST:
        return weighted_cross_entropy_plain(logits, labels, weight)
    return _WeightedCrossEntropy.apply(logits, labels, weight)  # type: ignore[no-untyped-call]


class _WeightedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        logits, labels, weight = logits.contiguous(), labels.contiguous(), weight.contiguous()
        slope = torch.empty_like(logits)
        B, C = logits.shape[-2:]
        wide = triton.next_power_of_2(C)
        rows = max(1, TILE // wide)
        total = torch.empty((*labels.shape[:-1], -(-B // rows)), device=logits.device)
        grid = (total.numel() // total.shape[-1], total.shape[-1])
        _weighted_cross_entropy[grid](logits, labels, weight, slope, total, B, C, wide, rows, num_warps=8)
        ctx.save_for_backward(slope)
        if total.shape[-1] == 1:
            return total.squeeze(-1)
        return total.sum(-1) if total.ndim == 1 else per_run(lambda each: each.sum(-1), 1, total)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradient.unsqueeze(-1).unsqueeze(-1), None, None


@jit
def _weighted_cross_entropy(
    logits: tensor, labels: tensor, weight: tensor, slope: tensor, total: tensor,
    B: tensor, C: tensor, WIDE: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    """Compute ROWS samples of a run."""
    run = tl.program_id(0).to(tl.int64)
    c, r = tl.arange(0, WIDE), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (r < B)[:, None] & (c < C)[None, :]
    at = (run * B + r)[:, None] * C + c[None, :]
    x = tl.load(logits + at, mask=mask, other=float("-inf"))
    w = tl.load(weight + run * B + r, mask=r < B, other=0.0)
    y = tl.load(labels + run * B + r, mask=r < B, other=0)
    x = tl.where(
        (r < B)[:, None], x, tl.where(c[None, :] == 0, 0.0, float("-inf"))
    )  # no NaN in rows beyond the batch
    high = tl.max(x, 1)
    e = tl.exp(x - high[:, None])
    sums = tl.sum(e, 1)
    right = c[None, :] == y[:, None]
    own = tl.sum(tl.where(right, x, 0.0), 1)
    tl.store(slope + at, w[:, None] * (e / sums[:, None] - tl.where(right, 1.0, 0.0)), mask=mask)
    tl.store(total + run * tl.num_programs(1) + tl.program_id(1), tl.sum(w * (high + tl.log(sums) - own)))
