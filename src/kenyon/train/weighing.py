"""What one batch adds to an importance, in one pass over the rows where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kenyon import passes
from kenyon.forces import Force, sorted_forces
from kenyon.importance import GradientImportance


def weigh(
    importance: GradientImportance,
    estimate: Tensor,
    gradient: Tensor,
    theta: Tensor,
    share: Tensor,
    forces: Sequence[Force] = (),
) -> None:
    """Add to the estimate (R, Pp) what the gradient (R, P) says, with the forces on theta (R, P), times share (R,).

    The gradient is lost.
    """
    ordered = sorted_forces(forces)
    if passes.available(theta) and ordered.fit:
        found = (ordered.pulls, ordered.decay)
        passes.weigh(estimate, gradient, theta, share, importance.numerator, *found, square=importance.square)
        return
    for force in forces:
        force.add_to(gradient, theta)
    estimate.addcmul_(importance.reduce(gradient[:, : estimate.shape[1]]), share.unsqueeze(1))
