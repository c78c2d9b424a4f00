"""How far weights are from where they are wanted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kenyon.penalties import square_distance


def distance(parameters: dict[str, nn.Parameter], target: dict[str, Tensor], importance: dict[str, Tensor]) -> Tensor:
    """sum_m importance_m (theta_m - target_m)^2 over all parameters."""
    found = [_SquareDistance.apply(p, target[name], importance[name]) for name, p in parameters.items()]  # type: ignore
    return torch.stack(found).sum()


class _SquareDistance(torch.autograd.Function):
    """With its gradient in closed form: half of what going back through every operation takes."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, target: Tensor, importance: Tensor) -> Tensor:
        ctx.save_for_backward(theta, target, importance)
        return square_distance(*(tensor.unsqueeze(0) for tensor in (theta, target, importance))).squeeze(0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        theta, target, importance = ctx.saved_tensors
        return ((theta - target) * importance * (2 * gradient)).to(theta.dtype), None, None
