"""A dense layer of many networks at once, with float32 gradients of the weights for inputs of any type.

Autograd would compute the gradient of the weights transposed and in bfloat16, and then transpose and convert it. If
memory for that gradient is given, a custom kernel writes it there: libraries are slow with unaligned addresses or
refuse them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.layout import Factors
from kenyon.backends.triton.fused import works
from kenyon.utils.determinism import per_run
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# A tile: outputs, inputs, and rows per iteration. Small, so that a processor loads one while it writes another.
TALL, WIDE, DEEP, WARPS = 64, 128, 64, 8
MOST = 256  # rows, at most: with many more, writing the gradient is no longer the bottleneck


def available(x: Tensor) -> bool:
    return triton is not None and x.dtype is torch.bfloat16 and works(x.device)


def dense_layer(x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
    """Return x (..., B, I) by weights (..., O, I) plus biases (..., O): (..., B, O), computed in the type of x.

    `memory`: for the gradient of the weights, which may be written there.
    """
    return _DenseLayer.apply(x, weight, bias, memory)  # type: ignore[no-untyped-call]


def factored_layer(x: Tensor, bias: Tensor, factors: Factors) -> Tensor:
    """Return x (K, B, I) by the weights in `factors`, of one run, plus biases (K, O).

    The backward pass of the bias stores the factors of the weights' gradient.
    """
    return _FactoredLayer.apply(x, bias, factors)  # type: ignore[no-untyped-call]


class _DenseLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        ctx.lead, ctx.memory = x.shape[:-2], memory
        flat, w = x.flatten(0, -3), weight.to(x.dtype).flatten(0, -3)  # converted first: one copy instead of two
        ctx.save_for_backward(flat, w)
        return _outputs(flat, w, bias.flatten(0, -2), ctx.lead[-1]).unflatten(0, ctx.lead)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        flat, w = ctx.saved_tensors
        dy = gradient.flatten(0, -3)
        memory, learners = None if ctx.memory is None else ctx.memory.flatten(0, -3), ctx.lead[-1]
        dw = per_run(weight_gradient, learners, dy, flat) if memory is None else weight_gradient(dy, flat, memory)
        dx, db = _input_gradient(dy, w, learners), _bias_gradient(dy, learners)
        dx, dw, db = (each.unflatten(0, ctx.lead) for each in (dx, dw, db))
        return dx, dw, db, None


class _FactoredLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, factors: Factors) -> Tensor:
        ctx.factors = factors
        ctx.save_for_backward(x)
        if len(x) == 1:  # a batched product would first copy the biases for every sample
            return F.linear(x[0], factors.weight[0], bias[0].to(x.dtype)).unsqueeze(0)
        return _outputs(x, factors.weight, bias, len(x))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        [x] = ctx.saved_tensors
        ctx.factors.store(dy, x)
        dx = _input_gradient(dy, ctx.factors.weight, len(x)) if ctx.needs_input_grad[0] else None
        return dx, _bias_gradient(dy, len(x)), None


def _outputs(x: Tensor, w: Tensor, bias: Tensor, learners: int) -> Tensor:
    """x (K, B, I) by w (K, O, I) plus biases (K, O): (K, B, O)"""
    return per_run(torch.baddbmm, learners, bias.to(x.dtype).unsqueeze(1), x, w.transpose(1, 2))


def _input_gradient(dy: Tensor, w: Tensor, learners: int) -> Tensor:
    return per_run(torch.bmm, learners, dy, w)


def _bias_gradient(dy: Tensor, learners: int) -> Tensor:
    wide = torch.promote_types(dy.dtype, torch.float32)
    return per_run(lambda each: each.sum(1, dtype=wide), learners, dy)


def weight_gradient(dy: Tensor, x: Tensor, memory: Tensor | None = None) -> Tensor:
    """Return dy (K, B, O) by x (K, B, I), summed over B: (K, O, I) in float32 or better, in `memory` if that is
    faster.
    """
    if memory is None or not available(x) or x.shape[1] > MOST or not memory.is_contiguous():
        return wide_products(dy.transpose(1, 2), x)
    dy, x = dy.contiguous(), x.contiguous()
    K, B, I = x.shape  # noqa: E741
    O = dy.shape[2]  # noqa: E741
    grid = (-(-I // WIDE), -(-O // TALL), K)
    with torch.cuda.device(x.get_device()):
        _outer[grid](dy, x, memory, O, I, B, TALL, WIDE, DEEP, num_warps=WARPS, num_stages=1)
    return memory


def wide_products(a: Tensor, b: Tensor) -> Tensor:
    """Return batched products of matrices, in float32 or better."""
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
