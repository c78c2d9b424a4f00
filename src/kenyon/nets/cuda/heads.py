"""The head of one task applied to every learner of every run, each way in one pass over the features.

A library's matrix product is at a loss with five outputs; here a program takes a block of rows and all of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kenyon.kernels import jit
from kenyon.nets import wide
from kenyon.steady import of_each_run

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

ROWS = 32
WIDEST = 1024  # features of a row that a program can hold
MOST = 16  # classes, which it takes one by one: of more, a library makes one product


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype is torch.float32


def own_logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """features (R, K, B, F) by heads (R, C, F) and (R, C): (R, K, B, C)."""
    if not available(features) or features.shape[-1] > WIDEST or weight.shape[1] > MOST:
        return own_logits_plain(features, weight, bias)
    return _Heads.apply(features, weight, bias)  # type: ignore[no-untyped-call]


def own_logits_plain(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    flat = features.flatten(1, 2)
    if wide.available(flat, weight):
        out = wide.wide_product(flat, weight, bias)
    else:
        out = torch.baddbmm(bias.unsqueeze(1), flat, weight.transpose(1, 2))
    return out.unflatten(1, features.shape[1:3])


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        features, weight = features.contiguous(), weight.contiguous()
        R, K, B, F = features.shape
        C, rows = weight.shape[1], K * B
        out = torch.empty((R, K, B, C), device=features.device)
        grid = (-(-rows // ROWS), R)
        wide = triton.next_power_of_2(F)
        _forward[grid](features, weight, bias.contiguous(), out, rows, F, C, wide, ROWS, num_warps=4)
        ctx.save_for_backward(features, weight)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        R, K, B, F = features.shape
        C, rows = weight.shape[1], K * B
        blocks, wide = -(-rows // ROWS), triton.next_power_of_2(F)
        found = torch.empty_like(features)
        partial = torch.empty((R, blocks, C, F), device=features.device)
        _backward[(blocks, R)](gradient, features, weight, found, partial, rows, F, C, wide, ROWS, num_warps=8)
        dw, db = (of_each_run(lambda rows: rows.sum(1), 1, part) for part in (partial, gradient.flatten(1, 2)))
        return found, dw, db


@jit
def _forward(
    features: tensor, weight: tensor, bias: tensor, out: tensor,
    rows: tensor, F: tensor, C: constexpr, WIDE: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row, f = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    there = row < rows
    mask = there[:, None] & (f < F)[None, :]
    x = tl.load(features + (run * rows + row[:, None]) * F + f[None, :], mask=mask, other=0.0)
    for c in range(C):
        w = tl.load(weight + (run * C + c) * F + f, mask=f < F, other=0.0)
        y = tl.sum(x * w[None, :], 1) + tl.load(bias + run * C + c)
        tl.store(out + (run * rows + row) * C + c, y, mask=there)


@jit
def _backward(
    gradient: tensor, features: tensor, weight: tensor, found: tensor, partial: tensor,
    rows: tensor, F: tensor, C: constexpr, WIDE: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row, f = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    there = row < rows
    mask = there[:, None] & (f < F)[None, :]
    place = (run * rows + row[:, None]) * F + f[None, :]
    x = tl.load(features + place, mask=mask, other=0.0)
    dx = tl.zeros([ROWS, WIDE], tl.float32)
    left = partial + (run * tl.num_programs(0) + tl.program_id(0)) * C * F
    for c in range(C):
        w = tl.load(weight + (run * C + c) * F + f, mask=f < F, other=0.0)
        g = tl.load(gradient + (run * rows + row) * C + c, mask=there, other=0.0)
        dx += g[:, None] * w[None, :]
        tl.store(left + c * F + f, tl.sum(g[:, None] * x, 0), mask=f < F)
    tl.store(found + place, dx, mask=mask)
