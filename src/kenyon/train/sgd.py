"""Stochastic gradient descent with momentum over flat buffers, with a learning rate of its own for every run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kenyon import passes
from kenyon.forces import Force, sorted_forces


class Sgd:
    """PyTorch's SGD without dampening and weight decay, for R independent rows of parameters."""

    def __init__(self, shape: torch.Size, device: torch.device, momentum: float) -> None:
        self.momentum = momentum
        self.velocity = torch.zeros(shape, device=device)  # (R, P)

    def tensors(self) -> dict[str, Tensor]:
        return {"sgd.velocity": self.velocity}

    def restart(self, runs: Tensor | None = None) -> None:
        """Forget all momentum, of the given runs (R,) bool or of all."""
        if runs is None:
            self.velocity.zero_()
        else:
            self.velocity.masked_fill_(runs.unsqueeze(1), 0.0)

    def step(
        self,
        theta: Tensor,
        gradient: Tensor,
        rate: Tensor,
        moves: Tensor,
        forces: Sequence[Force] = (),
        *,
        keep: bool = True,
    ) -> None:
        """Change theta (R, P) in place. `rate` (R,) is the learning rate; runs with moves (R,) = 0 stay put.

        `forces` add to the gradient; with `keep`, also in its buffer.
        """
        pulls, decays = sorted_forces(forces)
        if passes.available(theta) and len(pulls) <= 2 and len(decays) <= 1:
            buffers = (theta, gradient, self.velocity, rate, moves)
            passes.sgd(*buffers, self.momentum, pulls, decays[0] if decays else None, keep=keep)
            return
        for force in forces:
            force.add_to(gradient, theta)
        moved = torch.addcmul(gradient, self.velocity, torch.tensor(self.momentum, device=theta.device))
        self.velocity.lerp_(moved, moves.unsqueeze(1))
        theta.sub_(self.velocity * (rate * moves).unsqueeze(1))
