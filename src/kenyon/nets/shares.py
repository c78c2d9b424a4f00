"""Dense layers of many weights on a CPU: shares of their outputs, or of their inputs, side by side on its cores.

Cut by samples, as `apart` cuts the rest of a network, every part of a batch would have a gradient of all weights, to
be written and added up: for AlexNet that was most of a step. Shares are cut by the shape of the weights alone and
have one thread each, so that every sum rounds alike on any number of cores. Weights are converted to the type of the
samples, where they differ, in the share that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.threads import side_by_side

MANY = 2**20  # weights of a layer, which a core's cache holds no longer
SHARES = 4  # at least, for four cores
MOST = 2**21  # weights of a share


def many_weights(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.weight.numel() >= MANY


def dense_in_shares(x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor | None = None) -> Tensor:
    """x (K, B, I) by weights (K, O, I) and biases (K, O): (K, B, O), computed in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[:2])
    return _DenseInShares.apply(x, weight, bias, place)  # type: ignore[no-untyped-call]


def cut(length: int, other: int) -> list[slice]:
    """Shares of an axis of a matrix, whose other axis is so long."""
    size = max(1, min(-(-length // SHARES), MOST // other))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


class _DenseInShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, place: Tensor | None) -> Tensor:
        K, O, I = weight.shape  # noqa: E741
        ctx.place = place
        ctx.save_for_backward(x, weight)
        y, bias = x.new_empty(K, x.shape[1], O), bias.to(x.dtype)

        def some_outputs(k: int, share: slice) -> None:
            y[k, :, share] = F.linear(x[k], weight[k, share].to(x.dtype), bias[k, share])

        _all([partial(some_outputs, k, share) for k in range(K) for share in cut(O, I)])
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        K, O, I = weight.shape  # noqa: E741
        dw = torch.empty_like(weight) if ctx.place is None else ctx.place
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None

        def of_weights(k: int, share: slice) -> None:
            slope = dy[k, :, share].T
            if dw.dtype is x.dtype:
                torch.mm(slope, x[k], out=dw[k, share])
            else:
                dw[k, share].copy_(slope @ x[k])

        def of_inputs(k: int, share: slice) -> None:
            assert dx is not None
            dx[k, :, share] = dy[k] @ weight[k, :, share].to(x.dtype)

        work = [partial(of_weights, k, share) for k in range(K) for share in cut(O, I)]
        if dx is not None:
            work += [partial(of_inputs, k, share) for k in range(K) for share in cut(I, O)]
        _all(work)
        return dx, dw, dy.sum(1, dtype=weight.dtype), None


def _all(work: Sequence[Callable[[], None]]) -> None:
    side_by_side(lambda one: one(), work)
