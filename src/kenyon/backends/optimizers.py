"""What optimisers of a fleet share: rows of parameters, a rate for each, and forces that add to gradients.

Adam over flat buffers, with a learning rate, a step count and a restart of its own for every run.

Stochastic gradient descent with momentum over flat buffers, with a learning rate of its own for every run.

How hard penalties hold weights, against what steps of the optimiser can follow.

A penalty whose curvature at a weight is c pulls it back by rate * c of its distance in every step. Gradient descent
with momentum m swings about such a spring with ever wider swings once rate * c exceeds 2 (1 + m), whatever the data
say, and soon the loss is no longer a number. Adam's steps do not grow with the gradient: it knows no such limit.

An importance that is bounded counts for no more than steps can follow: a weight that was held harder is still
brought back to its anchor within a few steps. Other pulls, such as that of AF-2, are as they were.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from kenyon.backends.triton import factors
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.factors import Factors
from kenyon.backends.triton.updates import Force, Idle, Pull, Sorted, sorted_forces
from kenyon.utils.threads import piece_by_piece


class Besides(NamedTuple):
    """What a pass over the rows does besides following gradients, as `Optimiser.step` has it."""

    forces: Sorted
    keep: bool
    idle: Idle | None
    factors: Sequence[Factors]


class Optimizer(ABC):
    """Changes R independent rows of parameters (R, P), in one pass where there is a GPU."""

    multiplies = False  # whether that pass makes gradients of `factors`
    steps: Tensor | None = None  # (R, 1) how many each run has made, where that matters

    @property
    def follows(self) -> float:
        """The largest product of rate and curvature at which steps do not swing ever wider."""
        return inf

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its state, by names that begin with its own; all have a leading run axis, and two axes."""

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
        idle: Idle | None = None,
        factors: Sequence[Factors] = (),
    ) -> None:
        """Change theta (R, P) in place. `rate` (R,) is the learning rate; runs with moves (R,) = 0 stay put.

        `forces` add to the gradient; with `keep`, also in its buffer. What is `idle` has neither gradient nor
        momentum, and need not be looked at unless it decays. What `factors` are there for, in the order of the rows,
        has its gradient from them, and its buffer holds it only with `keep`.
        """
        ordered = sorted_forces(forces, len(theta))
        if self.steps is not None:
            self.steps.add_(moves.unsqueeze(1))
        in_one_pass = passes.available(theta) and ordered.fit
        written = factors if keep or not (in_one_pass and self.multiplies) else ()
        for part in written:
            part.write(gradient)
        if in_one_pass:
            besides = Besides(ordered, keep, idle if ordered.decay is None else None, () if written else factors)
            self._in_one_pass(theta, gradient, rate, moves, besides)
        else:

            def move(part: slice) -> None:
                weights, slope = theta[:, part], gradient[:, part]
                for force in forces:
                    force.within(part).add_to(slope, weights)
                self._plainly(part, weights, slope, rate, moves)

            piece_by_piece(theta, move)
        for part in written:
            part.read(theta)

    @abstractmethod
    def _in_one_pass(
        self, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor, besides: Besides
    ) -> None: ...

    @abstractmethod
    def _plainly(self, part: slice, theta: Tensor, gradient: Tensor, rate: Tensor, moves: Tensor) -> None:
        """These columns of the rows, whose forces the gradient has already."""


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


ROOM = 0.5  # the share of what steps can follow that protection may take: the loss has curvature of its own


def stiffness(forces: Sequence[Force], row: int) -> float:
    """The largest curvature of the pulls at any weight of a row; decays are weak, and alike for all."""
    pulls = [force for force in forces if isinstance(force, Pull)]
    if not pulls:
        return 0.0
    curvature = pulls[0].weight.new_zeros(max(pull.weight.shape[1] for pull in pulls))
    for pull in pulls:
        curvature[: pull.weight.shape[1]].addcmul_(pull.weight[row], pull.strength[row])
    return float(curvature.max())


def bound(importance: Tensor, forces: Sequence[Force], rate: float, limit: float) -> None:
    """Lower importances (R, Pp) to those at which their pull has the curvature ROOM * limit / rate."""
    for force in forces:
        if isinstance(force, Pull) and force.weight is importance:
            importance.clamp_(max=(ROOM * limit / (rate * force.strength)).unsqueeze(1))


def why_overshot(forces: Sequence[Force], importance: Tensor, rates: Mapping[int, float], limit: float) -> str:
    """Why a loss of these rows, at these rates, was no longer finite, if this is why; nothing if not."""

    def reached(pulls: Sequence[Force]) -> float:
        return max(rate * stiffness(pulls, row) for row, rate in rates.items())

    if not (most := reached(forces)) > limit:
        return ""
    helps = reached([force for force in forces if isinstance(force, Pull) and force.weight is importance]) > limit
    mended = "; bounded=true lets no importance count for more" if helps else ""
    return (
        f"Protection held a weight so hard that steps overshot: rate x strength x importance was {most:.3g}, and "
        f"{limit:.3g} is the most that they can follow{mended}. "
    )
