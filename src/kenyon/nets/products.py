"""A dense layer of many networks at once, with float32 gradients of the weights whatever the inputs are.

Written out because autograd would make the gradient of the weights turned round and in bfloat16, and then turn and
convert it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def dense_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (..., B, I) by weights (..., O, I) and biases (..., O): (..., B, O), computed in the type of x."""
    return _DenseLayer.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class _DenseLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.lead = x.shape[:-2]
        flat, w = x.flatten(0, -3), weight.to(x.dtype).flatten(0, -3)  # in this order there is one copy, not two
        ctx.save_for_backward(flat, w)
        out = torch.baddbmm(bias.to(x.dtype).flatten(0, -2).unsqueeze(1), flat, w.transpose(1, 2))
        return out.unflatten(0, ctx.lead)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat, w = ctx.saved_tensors
        dy = gradient.flatten(0, -3)
        wide = torch.promote_types(dy.dtype, torch.float32)
        parts = torch.bmm(dy, w), products(dy.transpose(1, 2), flat), dy.sum(1, dtype=wide)
        dx, dw, db = (part.unflatten(0, ctx.lead) for part in parts)
        return dx, dw, db


def products(a: Tensor, b: Tensor) -> Tensor:
    """Batched products of matrices, in float32 or better."""
    if a.is_cuda and a.dtype is torch.bfloat16:
        return torch.bmm(a, b, out_dtype=torch.float32)
    wide = torch.promote_types(a.dtype, torch.float32)
    return torch.bmm(a.to(wide), b.to(wide))
