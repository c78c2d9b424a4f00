"""A convolution of one learner, whose gradient goes from where a library leaves it to where it is wanted.

The general way makes a block-diagonal kernel of all learners' weights. With one learner that is a copy of a copy, and
its gradient is as many copies back: for layers as small as AlexNet's, each takes as long as the convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.deepened import Deepened
from kenyon.nets.dropout import padded


def convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, place: Tensor | None = None) -> Tensor:
    """x (B, C, H, W) by weights (1, O, I, h, w) with I <= C, without bias: (B, padded(O), H', W'), in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    deepened = Deepened.of(layer)
    if deepened is not None:
        x = deepened.images(x)
    return _Convolution.apply(x, weight, layer, deepened, place)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, layer: nn.Conv2d, deepened: Deepened | None, place: Tensor | None
    ) -> Tensor:
        """x as the convolution is done."""
        O, I = weight.shape[1:3]  # noqa: E741
        sides = weight.shape[3:] if deepened is None else deepened.deep
        kernel = x.new_empty(padded(O), *sides, x.shape[1])
        if deepened is not None:
            kernel[O:].zero_()
            kernel[:O].unflatten(3, deepened.pixel).copy_(deepened.weights(weight[0]))
        else:
            if (padded(O), x.shape[1]) != (O, I):
                kernel.zero_()
            kernel[:O, ..., :I].copy_(weight[0].movedim(1, -1))
        kernel = kernel.permute(0, 3, 1, 2)  # in channels_last memory
        ctx.deepened, ctx.place, ctx.of = deepened, place, (weight.shape, weight.dtype)
        ctx.steps = (layer.stride, layer.padding, layer.dilation) if deepened is None else (1, 0, 1)
        ctx.save_for_backward(x, kernel)
        return F.conv2d(x, kernel, None, *ctx.steps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, kernel = ctx.saved_tensors
        (shape, dtype), deepened = ctx.of, ctx.deepened
        pairs = ([step, step] if isinstance(step, int) else step for step in ctx.steps)
        wanted = [ctx.needs_input_grad[0], True, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, kernel, None, *pairs, False, [0, 0], 1, wanted)
        dw = dw[: shape[1], : shape[2]] if deepened is None else deepened.flat(dw[: shape[1]])
        found = dw.new_empty(shape, dtype=dtype) if ctx.place is None else ctx.place
        found.copy_(dw)
        return dx, found, None, None, None
