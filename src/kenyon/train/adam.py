"""Adam over flat buffers, with a learning rate, a step count and a restart of its own for every run."""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon import passes
from kenyon.optimiser import Besides, Optimiser

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam(Optimiser):
    """PyTorch's Adam without weight decay, for R independent rows of parameters."""

    steps: Tensor

    def __init__(self, shape: torch.Size, device: torch.device, epsilon: float = EPSILON) -> None:
        self.epsilon = epsilon
        self.first = torch.zeros(shape, device=device)  # (R, P) running mean of the gradient
        self.second = torch.zeros(shape, device=device)  # (R, P) of its square
        self.steps = torch.zeros(shape[0], 1, device=device)

    def tensors(self) -> dict[str, Tensor]:
        return {"adam.first": self.first, "adam.second": self.second, "adam.steps": self.steps}

    def _in_one_pass(self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, besides: Besides) -> None:
        buffers = (theta, gradient, self.first, self.second, rate, moves, self.steps)
        forces, keep, idle, _ = besides
        passes.adam(*buffers, (BETA1, BETA2), self.epsilon, forces.pulls, forces.decay, keep=keep, idle=idle)

    def _plainly(self, part: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        first, second, moves = self.first[:, part], self.second[:, part], moves.unsqueeze(1)
        first.lerp_(gradient, (1 - BETA1) * moves)
        second.lerp_(gradient.square(), (1 - BETA2) * moves)
        steps = self.steps.clamp(min=1)
        size = rate.unsqueeze(1) * moves / (1 - BETA1**steps)
        spread = second.sqrt().div_((1 - BETA2**steps).sqrt()).add_(self.epsilon)
        theta.sub_((first / spread).mul_(size))
