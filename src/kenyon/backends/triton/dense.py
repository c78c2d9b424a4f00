"""A dense layer of many networks at once, with float32 gradients of the weights whatever the inputs are.

Written out because autograd would make the gradient of the weights turned round and in bfloat16, and then turn and
convert it. Where the place is known in which that gradient is wanted, a kernel of our own writes it there: a library
takes places that are not aligned badly or not at all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.triton.factors import Factors
from kenyon.backends.triton.fused import works
from kenyon.utils.determinism import per_run
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# Of a tile: outputs, inputs, and rows at a time. Small, so that a processor loads for one and writes for another.
TALL, WIDE, DEEP, WARPS = 64, 128, 64, 8
MOST = 256  # rows: a product over many more of them is not bound by writing the gradient any more


def available(x: Tensor) -> bool:
    return triton is not None and x.dtype is torch.bfloat16 and works(x.device)


def dense_layer(x: Tensor, weight: Tensor, bias: Tensor, place: Tensor | None = None) -> Tensor:
    """x (..., B, I) by weights (..., O, I) and biases (..., O): (..., B, O), computed in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    return _DenseLayer.apply(x, weight, bias, place)  # type: ignore[no-untyped-call]


def factored_layer(x: Tensor, bias: Tensor, factors: Factors) -> Tensor:
    """The same of one run, x (K, B, I) by the weights that `factors` have. What their gradient is a product of is
    kept there, in the backward pass of the bias.
    """
    return _FactoredLayer.apply(x, bias, factors)  # type: ignore[no-untyped-call]


class _DenseLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, place: Tensor | None) -> Tensor:
        ctx.lead, ctx.place = x.shape[:-2], place
        flat, w = x.flatten(0, -3), weight.to(x.dtype).flatten(0, -3)  # in this order there is one copy, not two
        ctx.save_for_backward(flat, w)
        return _outputs(flat, w, bias.flatten(0, -2), ctx.lead[-1]).unflatten(0, ctx.lead)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        flat, w = ctx.saved_tensors
        dy = gradient.flatten(0, -3)
        place, learners = None if ctx.place is None else ctx.place.flatten(0, -3), ctx.lead[-1]
        dw = per_run(weight_gradient, learners, dy, flat) if place is None else weight_gradient(dy, flat, place)
        dx, db = _of_inputs(dy, w, learners), _summed(dy, learners)
        dx, dw, db = (part.unflatten(0, ctx.lead) for part in (dx, dw, db))
        return dx, dw, db, None


class _FactoredLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, factors: Factors) -> Tensor:
        ctx.factors = factors
        ctx.save_for_backward(x)
        if len(x) == 1:  # a batched product would begin with a copy of the biases for every sample
            return F.linear(x[0], factors.weight[0], bias[0].to(x.dtype)).unsqueeze(0)
        return _outputs(x, factors.weight, bias, len(x))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        [x] = ctx.saved_tensors
        ctx.factors.keep(dy, x)
        dx = _of_inputs(dy, ctx.factors.weight, len(x)) if ctx.needs_input_grad[0] else None
        return dx, _summed(dy, len(x)), None


def _outputs(x: Tensor, w: Tensor, bias: Tensor, learners: int) -> Tensor:
    """x (K, B, I) by w (K, O, I) and biases (K, O)"""
    return per_run(torch.baddbmm, learners, bias.to(x.dtype).unsqueeze(1), x, w.transpose(1, 2))


def _of_inputs(dy: Tensor, w: Tensor, learners: int) -> Tensor:
    return per_run(torch.bmm, learners, dy, w)


def _summed(dy: Tensor, learners: int) -> Tensor:
    wide = torch.promote_types(dy.dtype, torch.float32)
    return per_run(lambda part: part.sum(1, dtype=wide), learners, dy)


def weight_gradient(dy: Tensor, x: Tensor, place: Tensor | None = None) -> Tensor:
    """dy (K, B, O) by x (K, B, I), summed over B: (K, O, I) float32 or better, in its place if that is a gain."""
    if place is None or not available(x) or x.shape[1] > MOST or not place.is_contiguous():
        return wide_products(dy.transpose(1, 2), x)
    dy, x = dy.contiguous(), x.contiguous()
    K, B, I = x.shape  # noqa: E741
    O = dy.shape[2]  # noqa: E741
    grid = (-(-I // WIDE), -(-O // TALL), K)
    with torch.cuda.device(x.get_device()):
        _outer[grid](dy, x, place, O, I, B, TALL, WIDE, DEEP, num_warps=WARPS, num_stages=1)
    return place


def wide_products(a: Tensor, b: Tensor) -> Tensor:
    """Batched products of matrices, in float32 or better."""
    if a.is_cuda and a.dtype is torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    wide = torch.promote_types(a.dtype, torch.float32)
    return torch.bmm(a.to(wide), b.to(wide))


@jit
def _outer(
    dy: tensor, x: tensor, out: tensor, O: tensor, I: tensor,  # noqa: E741
    B: constexpr, TALL: constexpr, WIDE: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(1) * TALL + tl.arange(0, TALL)
    total = tl.zeros([TALL, WIDE], tl.float32)
    for start in range(0, B, DEEP):
        b = start + tl.arange(0, DEEP)
        row = k * B + b[:, None]
        g = tl.load(dy + row * O + o[None, :], mask=(b < B)[:, None] & (o < O)[None, :], other=0.0)
        v = tl.load(x + row * I + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
        total += tl.dot(tl.trans(g), v)
    tl.store(out + (k * O + o[:, None]) * I + i[None, :], total, mask=(o < O)[:, None] & (i < I)[None, :])
