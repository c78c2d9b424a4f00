"""Gradients of penalties in closed form, as what pulls on the weights of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Pull:
    """The gradient strength * weight * (theta - target), over the first Pp numbers of every row."""

    strength: Tensor  # (R,)
    weight: Tensor  # (R, Pp)
    target: Tensor  # (R, Pp)

    def within(self, part: slice) -> Pull:
        """On these columns alone."""
        return Pull(self.strength, self.weight[:, part], self.target[:, part])

    def add_to(self, gradient: Tensor, theta: Tensor) -> None:
        size = self.weight.shape[1]
        change = (theta[:, :size] - self.target).mul_(self.strength.unsqueeze(1))
        gradient[:, :size].addcmul_(self.weight, change)


@dataclass(frozen=True)
class Decay:
    """The gradient rate * theta, with a rate for each group of weights: see `Net.groups`."""

    rates: Tensor  # (R, G)
    groups: Tensor  # (P,) of any integers: which rate each number has; -1: none

    def within(self, part: slice) -> Decay:
        return Decay(self.rates, self.groups[part])

    def add_to(self, gradient: Tensor, theta: Tensor) -> None:
        rates = self.rates.index_select(1, self.groups.clamp(min=0).int()).masked_fill_(self.groups < 0, 0.0)
        gradient.addcmul_(rates, theta)


Force = Pull | Decay


class Sorted(NamedTuple):
    """Forces as single passes over the rows take them."""

    pulls: list[tuple[Tensor, Tensor, Tensor]]  # strength (R,), weight (R, Pp), target (R, Pp) with rows apart
    decays: list[tuple[Tensor, Tensor]]  # rates (R, G), groups (P,)

    @property
    def fit(self) -> bool:
        """Whether one pass takes them all."""
        return len(self.pulls) <= 2 and len(self.decays) <= 1

    @property
    def decay(self) -> tuple[Tensor, Tensor] | None:
        """The only one."""
        return self.decays[0] if self.decays else None


def sorted_forces(forces: Sequence[Force], runs: int) -> Sorted:
    """The forces on the rows of so many runs, in memory as kernels read them, which know no broadcasting."""
    pulls = [
        (
            force.strength.expand(runs).contiguous(),
            force.weight.expand(runs, -1).contiguous(),
            _rows(force.target.expand(runs, force.weight.shape[1])),
        )
        for force in forces
        if isinstance(force, Pull)
    ]
    decays = [
        (force.rates.expand(runs, -1).contiguous(), force.groups.contiguous())
        for force in forces
        if isinstance(force, Decay)
    ]
    return Sorted(pulls, decays)


def _rows(values: Tensor) -> Tensor:
    """Rows that may lie apart, each of numbers side by side."""
    return values if values.stride(1) == 1 else values.contiguous()
