"""Classification heads in float32, applied to all runs at once.

Libraries use few processors for a product of 64 samples by 20 classes: it has few tiles, each of which sums over
thousands of features in sequence. `wide_product` divides the features among programs and sums their results in order.

`own_logits` applies the head of a task to every learner of every run, forward and backward in one pass over the
features. Libraries are slow with five outputs; here a program computes a block of rows for all outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kenyon.backends.triton.fused import works
from kenyon.utils.determinism import per_run
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

WIDE_ROWS, CHUNK, DEEP = 32, 128, 32  # of a program: samples, features, and features per iteration
FEWEST = 512  # features; with fewer, a library's product is as fast
WIDE_MOST = 256  # classes whose sums a program can hold


def wide_available(x: Tensor, weight: Tensor) -> bool:
    """Return True if `wide_product` is faster for x (..., F) by weight (..., C, F)."""
    return (
        triton is not None
        and x.dtype is weight.dtype is torch.float32
        and weight.shape[-1] >= FEWEST
        and weight.shape[-2] <= WIDE_MOST
        and works(x.device)
    )


def wide_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x (R, N, F) by weight (R, C, F) plus bias (R, C): (R, N, C)."""
    return _Wide.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        (R, N, F), C = x.shape, weight.shape[1]
        chunks = -(-F // CHUNK)
        partial = x.new_empty((R, chunks, N, C))
        wide = max(16, triton.next_power_of_2(C))
        with torch.cuda.device(x.get_device()):
            _chunk[(-(-N // WIDE_ROWS), chunks, R)](
                x, weight, bias.contiguous(), partial, N, F, C, wide, WIDE_ROWS, CHUNK, DEEP, num_warps=4
            )
        ctx.save_for_backward(x, weight)
        return per_run(lambda each: each.sum(1), 1, partial)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dx = per_run(torch.bmm, 1, dy, weight)
        dw = per_run(torch.bmm, 1, dy.transpose(1, 2), x)
        return dx, dw, per_run(lambda each: each.sum(1), 1, dy)


@jit
def _chunk(
    x: tensor, weight: tensor, bias: tensor, partial: tensor, N: tensor, F: tensor, C: tensor,
    WIDE: constexpr, WIDE_ROWS: constexpr, CHUNK: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    run, chunk = tl.program_id(2).to(tl.int64), tl.program_id(1)
    row, c = tl.program_id(0) * WIDE_ROWS + tl.arange(0, WIDE_ROWS), tl.arange(0, WIDE)
    total = tl.zeros([WIDE_ROWS, WIDE], tl.float32)
    for start in tl.static_range(0, CHUNK, DEEP):
        f = chunk * CHUNK + start + tl.arange(0, DEEP)
        a = tl.load(
            x + (run * N + row[:, None]) * F + f[None, :], mask=(row < N)[:, None] & (f < F)[None, :], other=0.0
        )
        b = tl.load(
            weight + (run * C + c[:, None]) * F + f[None, :], mask=(c < C)[:, None] & (f < F)[None, :], other=0.0
        )
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    if chunk == 0:
        total += tl.load(bias + run * C + c, mask=c < C, other=0.0)[None, :]
    to = partial + ((run * tl.num_programs(1) + chunk) * N + row[:, None]) * C + c[None, :]
    tl.store(to, total, mask=(row < N)[:, None] & (c < C)[None, :])


ROWS = 32  # of a program
WIDEST = 1024  # features of a row that a program can hold
MOST = 16  # classes, computed one by one: with more, a library's product is faster


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype is torch.float32


def own_logits(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return features (R, K, B, F) by heads (R, C, F) and (R, C): (R, K, B, C)."""
    if not available(features) or features.shape[-1] > WIDEST or weight.shape[1] > MOST:
        return own_logits_plain(features, weight, bias)
    return _Heads.apply(features, weight, bias)  # type: ignore[no-untyped-call]


def own_logits_plain(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    flat = features.flatten(1, 2)
    if wide_available(flat, weight):
        out = wide_product(flat, weight, bias)
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
        dx = torch.empty_like(features)
        partial = torch.empty((R, blocks, C, F), device=features.device)
        _backward[(blocks, R)](gradient, features, weight, dx, partial, rows, F, C, wide, ROWS, num_warps=8)
        dw, db = (per_run(lambda rows: rows.sum(1), 1, each) for each in (partial, gradient.flatten(1, 2)))
        return dx, dw, db


@jit
def _forward(
    features: tensor, weight: tensor, bias: tensor, out: tensor,
    rows: tensor, F: tensor, C: constexpr, WIDE: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row, f = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    valid = row < rows
    mask = valid[:, None] & (f < F)[None, :]
    x = tl.load(features + (run * rows + row[:, None]) * F + f[None, :], mask=mask, other=0.0)
    for c in range(C):
        w = tl.load(weight + (run * C + c) * F + f, mask=f < F, other=0.0)
        y = tl.sum(x * w[None, :], 1) + tl.load(bias + run * C + c)
        tl.store(out + (run * rows + row) * C + c, y, mask=valid)


@jit
def _backward(
    gradient: tensor, features: tensor, weight: tensor, out: tensor, partial: tensor,
    rows: tensor, F: tensor, C: constexpr, WIDE: constexpr, ROWS: constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(1).to(tl.int64)
    row, f = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    valid = row < rows
    mask = valid[:, None] & (f < F)[None, :]
    place = (run * rows + row[:, None]) * F + f[None, :]
    x = tl.load(features + place, mask=mask, other=0.0)
    dx = tl.zeros([ROWS, WIDE], tl.float32)
    left = partial + (run * tl.num_programs(0) + tl.program_id(0)) * C * F
    for c in range(C):
        w = tl.load(weight + (run * C + c) * F + f, mask=f < F, other=0.0)
        g = tl.load(gradient + (run * rows + row) * C + c, mask=valid, other=0.0)
        dx += g[:, None] * w[None, :]
        tl.store(left + c * F + f, tl.sum(g[:, None] * x, 0), mask=f < F)
    tl.store(out + place, dx, mask=mask)
