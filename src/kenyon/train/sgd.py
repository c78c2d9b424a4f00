"""Stochastic gradient descent with momentum over flat buffers, with a learning rate of its own for every run."""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon import factors, passes
from kenyon.optimiser import Besides, Optimiser


class Sgd(Optimiser):
    """PyTorch's SGD without dampening and weight decay, for R independent rows of parameters."""

    multiplies = True

    def __init__(self, shape: torch.Size, device: torch.device, momentum: float) -> None:
        self.momentum = momentum
        self.velocity = torch.zeros(shape, device=device)  # (R, P)

    @property
    def follows(self) -> float:
        return 2 * (1 + self.momentum)

    def tensors(self) -> dict[str, Tensor]:
        return {"sgd.velocity": self.velocity}

    def _in_one_pass(self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, besides: Besides) -> None:
        moving, forces = (rate, moves, self.momentum), besides.forces
        without = [(part.start, part.stop) for part in besides.factors]
        rows = (theta, gradient, self.velocity, *moving, forces.pulls, forces.decay)
        passes.sgd(*rows, keep=besides.keep, idle=besides.idle, without=without)
        for part in besides.factors:
            factors.sgd(part, theta, self.velocity, *moving, forces)

    def _plainly(self, part: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        velocity = self.velocity[:, part]
        moved = torch.addcmul(gradient, velocity, torch.tensor(self.momentum, device=theta.device))
        velocity.lerp_(moved, moves.unsqueeze(1))
        theta.sub_(velocity * (rate * moves).unsqueeze(1))
