"""Adam over flat buffers, with a learning rate, a step count and a restart of its own for every run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kenyon import passes
from kenyon.forces import Force, sorted_forces

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """PyTorch's Adam without weight decay, for R independent rows of parameters."""

    def __init__(self, shape: torch.Size, device: torch.device) -> None:
        self.first = torch.zeros(shape, device=device)  # (R, P) running mean of the gradient
        self.second = torch.zeros(shape, device=device)  # (R, P) of its square
        self.steps = torch.zeros(shape[0], 1, device=device)

    def tensors(self) -> dict[str, Tensor]:
        return {"adam.first": self.first, "adam.second": self.second, "adam.steps": self.steps}

    def restart(self, runs: Tensor | None = None) -> None:
        """Forget all momentum, of the given runs (R,) bool or of all."""
        for tensor in self.tensors().values():
            if runs is None:
                tensor.zero_()
            else:
                tensor.masked_fill_(runs.unsqueeze(1), 0.0)

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
            self.steps.add_(moves.unsqueeze(1))
            buffers = (theta, gradient, self.first, self.second, rate, moves, self.steps)
            decay = decays[0] if decays else None
            passes.adam(*buffers, (BETA1, BETA2), EPSILON, pulls, decay, keep=keep)
            return
        for force in forces:
            force.add_to(gradient, theta)
        moves = moves.unsqueeze(1)
        self.steps.add_(moves)
        self.first.lerp_(gradient, (1 - BETA1) * moves)
        self.second.lerp_(gradient.square(), (1 - BETA2) * moves)
        steps = self.steps.clamp(min=1)
        size = rate.unsqueeze(1) * moves / (1 - BETA1**steps)
        spread = self.second.sqrt().div_((1 - BETA2**steps).sqrt()).add_(EPSILON)
        theta.sub_((self.first / spread).mul_(size))
