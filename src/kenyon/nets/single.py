"""A convolution of one learner, whose gradient goes from where a library leaves it to where it is wanted.

The general way makes a block-diagonal kernel of all learners' weights. With one learner that is a copy of a copy, and
its gradient is as many copies back: for layers as small as AlexNet's, each takes as long as the convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.dropout import padded


def convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, place: Tensor | None = None) -> Tensor:
    """x (B, C, H, W) by weights (1, O, I, h, w) with I <= C, without bias: (B, padded(O), H', W'), in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    return _Convolution.apply(x, weight, layer, place)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: nn.Conv2d, place: Tensor | None) -> Tensor:
        kernel = _laid_out(weight[0], padded(weight.shape[1]), x)
        ctx.layer, ctx.place, ctx.of = layer, place, (weight.shape, weight.dtype)
        ctx.save_for_backward(x, kernel)
        return F.conv2d(x, kernel, None, layer.stride, layer.padding, layer.dilation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, kernel = ctx.saved_tensors
        layer, (shape, dtype) = ctx.layer, ctx.of
        numbers = (layer.stride, layer.padding, layer.dilation, False, [0, 0], 1)
        wanted = [ctx.needs_input_grad[0], True, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, kernel, None, *numbers, wanted)
        found = dw.new_empty(shape, dtype=dtype) if ctx.place is None else ctx.place
        found.copy_(dw[: shape[1], : shape[2]])
        return dx, found, None, None


def _laid_out(weight: Tensor, outputs: int, x: Tensor) -> Tensor:
    """(O, I, h, w) -> (outputs, inputs of x, h, w) in the type of x, channels_last, with zeros for what is more."""
    (O, I), shape = weight.shape[:2], (outputs, x.shape[1], *weight.shape[2:])  # noqa: E741
    kernel = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if shape[:2] != (O, I):
        kernel.zero_()
    kernel[:O, :I].copy_(weight)
    return kernel
