"""A head of many features in float32: few outputs, and sums so long that a library lets most of a GPU wait.

A product of 64 samples by 20 classes has few tiles, and each goes through thousands of features one after another.
Here the features are divided among programs, and what they find is added up in their order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kenyon.kernels import jit
from kenyon.nets.fused import works
from kenyon.steady import of_each_run

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

ROWS, SHARE, DEEP = 32, 128, 32  # of a program: samples, features, and features at a time
FEWEST = 512  # features; of fewer, a library's product is as fast
MOST = 256  # classes, whose sums a program can hold


def available(x: Tensor, weight: Tensor) -> bool:
    """Whether x (..., F) by weight (..., C, F) is such a product."""
    return (
        triton is not None
        and x.dtype is weight.dtype is torch.float32
        and weight.shape[-1] >= FEWEST
        and weight.shape[-2] <= MOST
        and works(x.device)
    )


def wide_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (R, N, F) by weight (R, C, F) and bias (R, C): (R, N, C)."""
    return _Wide.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        (R, N, F), C = x.shape, weight.shape[1]
        shares = -(-F // SHARE)
        parts = x.new_empty((R, shares, N, C))
        wide = max(16, triton.next_power_of_2(C))
        with torch.cuda.device(x.get_device()):
            _share[(-(-N // ROWS), shares, R)](
                x, weight, bias.contiguous(), parts, N, F, C, wide, ROWS, SHARE, DEEP, num_warps=4
            )
        ctx.save_for_backward(x, weight)
        return of_each_run(lambda each: each.sum(1), 1, parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dx = of_each_run(torch.bmm, 1, dy, weight)
        dw = of_each_run(torch.bmm, 1, dy.transpose(1, 2), x)
        return dx, dw, of_each_run(lambda each: each.sum(1), 1, dy)


@jit
def _share(
    x: tensor, weight: tensor, bias: tensor, parts: tensor, N: tensor, F: tensor, C: tensor,
    WIDE: constexpr, ROWS: constexpr, SHARE: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    run, share = tl.program_id(2).to(tl.int64), tl.program_id(1)
    row, c = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    found = tl.zeros([ROWS, WIDE], tl.float32)
    for start in tl.static_range(0, SHARE, DEEP):
        f = share * SHARE + start + tl.arange(0, DEEP)
        a = tl.load(
            x + (run * N + row[:, None]) * F + f[None, :], mask=(row < N)[:, None] & (f < F)[None, :], other=0.0
        )
        b = tl.load(
            weight + (run * C + c[:, None]) * F + f[None, :], mask=(c < C)[:, None] & (f < F)[None, :], other=0.0
        )
        found = tl.dot(a, tl.trans(b), found, input_precision="ieee")
    if share == 0:
        found += tl.load(bias + run * C + c, mask=c < C, other=0.0)[None, :]
    to = parts + ((run * tl.num_programs(1) + share) * N + row[:, None]) * C + c[None, :]
    tl.store(to, found, mask=(row < N)[:, None] & (c < C)[None, :])
