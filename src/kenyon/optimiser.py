"""What optimisers of a fleet share: rows of parameters, a rate for each, and forces that add to gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from torch import Tensor

from kenyon import passes
from kenyon.factors import Factors
from kenyon.forces import Force, Sorted, sorted_forces
from kenyon.passes import Idle
from kenyon.pieces import piece_by_piece


class Besides(NamedTuple):
    """What a pass over the rows does besides following gradients, as `Optimiser.step` has it."""

    forces: Sorted
    keep: bool
    idle: Idle | None
    factors: Sequence[Factors]


class Optimiser(ABC):
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
