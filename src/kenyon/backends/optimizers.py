"""Optimizers of independent rows of parameters: Adam and SGD with momentum, and their stability limit.

Every run is a row (R, P) with a learning rate, a step count and a restart of its own. Gradients of weight penalties
are added in the same pass.

A penalty whose curvature at a weight is c pulls it back by rate * c of its distance in every step. Gradient descent
with momentum m oscillates with growing amplitude once rate * c exceeds 2 (1 + m), for any data, and the loss soon
overflows. Adam's steps do not grow with the gradient, so it has no such limit. With bounded importances, c stays
below the limit: a weight that was held harder is still brought back to its anchor within a few steps. Other pulls,
such as that of AF-2, are not changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from kenyon.backends.layout import Factors
from kenyon.backends.triton import factors
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.updates import Force, Idle, PullOperands, QuadraticPull, sorted_forces
from kenyon.utils.threads import for_each_chunk


class UpdateOptions(NamedTuple):
    """Options of a pass over the rows: see `Optimizer.step`."""

    pulls: PullOperands
    keep: bool
    idle: Idle | None
    factors: Sequence[Factors]


class Optimizer(ABC):
    """Base of optimizers that update R independent rows of parameters (R, P); on a GPU, in one pass."""

    multiplies = False  # the pass computes gradients from `factors`
    steps: Tensor | None = None  # (R, 1) number of steps of each run, if the optimizer counts them

    @property
    def follows(self) -> float:
        """The largest product of rate and curvature at which steps are stable."""
        return inf

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the state, each tensor (R, ...) with two axes, by names that begin with the optimizer's."""

    def restart(self, runs: Tensor | None = None) -> None:
        """Reset the state of the given runs (R,) bool, or of all."""
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
        pulls: Sequence[Force] = (),
        *,
        keep: bool = True,
        idle: Idle | None = None,
        factors: Sequence[Factors] = (),
    ) -> None:
        """Update theta (R, P) in place. `rate` (R,) is the learning rate; runs with moves (R,) = 0 are not changed.

        `pulls` are added to the gradient, and with `keep` to its buffer too. Parameters in `idle` have neither
        gradient nor momentum, and are skipped unless they decay. Parameters in `factors`, in the order of the rows,
        get their gradient from them; its buffer holds it only with `keep`.
        """
        operands = sorted_forces(pulls, len(theta))
        if self.steps is not None:
            self.steps.add_(moves.unsqueeze(1))
        fused = passes.available(theta) and operands.fit
        written = factors if keep or not (fused and self.multiplies) else ()
        for layer in written:
            layer.write(gradient)
        if fused:
            idle = idle if operands.decay is None else None
            self._fused(theta, gradient, rate, moves, UpdateOptions(operands, keep, idle, () if written else factors))
        else:

            def update(columns: slice) -> None:
                weights, slope = theta[:, columns], gradient[:, columns]
                for pull in pulls:
                    pull.within(columns).add_to(slope, weights)
                self._update(columns, weights, slope, rate, moves)

            for_each_chunk(theta, update)
        for layer in written:
            layer.read(theta)

    @abstractmethod
    def _fused(self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, options: UpdateOptions) -> None:
        """Make a step in one pass on a GPU."""

    @abstractmethod
    def _update(self, columns: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        """Make a step on these columns of the rows, whose gradient has its pulls already."""


BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam(Optimizer):
    """PyTorch's Adam without weight decay, for R independent rows of parameters."""

    steps: Tensor

    def __init__(self, shape: torch.Size, device: torch.device, epsilon: float = EPSILON) -> None:
        self.epsilon = epsilon
        self.first = torch.zeros(shape, device=device)  # (R, P) running mean of the gradient
        self.second = torch.zeros(shape, device=device)  # (R, P) of its square
        self.steps = torch.zeros(shape[0], 1, device=device)

    def tensors(self) -> dict[str, Tensor]:
        return {"adam.first": self.first, "adam.second": self.second, "adam.steps": self.steps}

    def _fused(self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, options: UpdateOptions) -> None:
        buffers = (theta, gradient, self.first, self.second, rate, moves, self.steps)
        pulls, keep, idle, _ = options
        passes.adam(*buffers, (BETA1, BETA2), self.epsilon, pulls.pulls, pulls.decay, keep=keep, idle=idle)

    def _update(self, columns: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        first, second, moves = self.first[:, columns], self.second[:, columns], moves.unsqueeze(1)
        first.lerp_(gradient, (1 - BETA1) * moves)
        second.lerp_(gradient.square(), (1 - BETA2) * moves)
        steps = self.steps.clamp(min=1)
        size = rate.unsqueeze(1) * moves / (1 - BETA1**steps)
        spread = second.sqrt().div_((1 - BETA2**steps).sqrt()).add_(self.epsilon)
        theta.sub_((first / spread).mul_(size))


class Sgd(Optimizer):
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

    def _fused(self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, options: UpdateOptions) -> None:
        moving, pulls = (rate, moves, self.momentum), options.pulls
        excluded = [(layer.start, layer.stop) for layer in options.factors]
        rows = (theta, gradient, self.velocity, *moving, pulls.pulls, pulls.decay)
        passes.sgd(*rows, keep=options.keep, idle=options.idle, excluded=excluded)
        for layer in options.factors:
            factors.sgd(layer, theta, self.velocity, *moving, pulls)

    def _update(self, columns: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        velocity = self.velocity[:, columns]
        moved = torch.addcmul(gradient, velocity, torch.tensor(self.momentum, device=theta.device))
        velocity.lerp_(moved, moves.unsqueeze(1))
        theta.sub_(velocity * (rate * moves).unsqueeze(1))


ROOM = 0.5  # the fraction of the stability limit that protection may use: the loss has curvature, too


def stiffness(forces: Sequence[Force], row: int) -> float:
    """Return the largest curvature of the pulls at any weight of a row, without decays, which are weak."""
    pulls = [force for force in forces if isinstance(force, QuadraticPull)]
    if not pulls:
        return 0.0
    curvature = pulls[0].weight.new_zeros(max(pull.weight.shape[1] for pull in pulls))
    for pull in pulls:
        curvature[: pull.weight.shape[1]].addcmul_(pull.weight[row], pull.strength[row])
    return float(curvature.max())


def bound(importance: Tensor, forces: Sequence[Force], rate: float, limit: float) -> None:
    """Clamp importances (R, Pp) so that the curvature of their pull is at most ROOM * limit / rate."""
    for force in forces:
        if isinstance(force, QuadraticPull) and force.weight is importance:
            importance.clamp_(max=(ROOM * limit / (rate * force.strength)).unsqueeze(1))


def why_overshot(forces: Sequence[Force], importance: Tensor, rates: Mapping[int, float], limit: float) -> str:
    """Return a message if protection explains that a loss of these rows, at these rates, is not finite, else ""."""

    def reached(pulls: Sequence[Force]) -> float:
        return max(rate * stiffness(pulls, row) for row, rate in rates.items())

    if not (most := reached(forces)) > limit:
        return ""
    own = [force for force in forces if isinstance(force, QuadraticPull) and force.weight is importance]
    helps = reached(own) > limit
    mended = "; bounded=true lets no importance count for more" if helps else ""
    return (
        f"Protection held a weight so hard that steps overshot: rate x strength x importance was {most:.3g}, and "
        f"{limit:.3g} is the most that they can follow{mended}. "
    )
