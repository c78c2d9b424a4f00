"""How hard penalties hold weights, against what steps of the optimiser can follow.

A penalty whose curvature at a weight is c pulls it back by rate * c of its distance in every step. Gradient descent
with momentum m swings about such a spring with ever wider swings once rate * c exceeds 2 (1 + m), whatever the data
say, and soon the loss is no longer a number. Adam's steps do not grow with the gradient: it knows no such limit.

An importance that is bounded counts for no more than steps can follow: a weight that was held harder is still
brought back to its anchor within a few steps. Other pulls, such as that of AF-2, are as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from kenyon.forces import Force, Pull

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
