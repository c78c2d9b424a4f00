"""Importance of weights for earlier games, and the anchors that penalties pull towards.

Importance is measured on new play of the finished game, which fills a rollout as long as training's.
Ppo.importance_rollouts times it is divided into as many minibatches as training has, and each time
Ppo.importance_steps of its steps are new:

    Fisher  squares of the gradient of the PPO loss of a minibatch, its norm clipped as in training
    MAS     absolute values of the gradient of the L2 norms of the learners' summed vectors, summed over samples

Both are summed over all minibatches and divided by the number of rollouts. The published lambdas belong to these
scales: a minibatch is as large as in training, and MAS is a sum over the samples of a rollout, not their mean. Path
importances (SI, RWalk) come from the clipped gradients of training, as for images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.methods.importance import GradientImportance, Merge, accumulated
from kenyon.rl.ppo import Anchors

MEASURED = ("fisher_published", "mas")


def rollout_importance(method: Method) -> GradientImportance | None:
    """Return the method's importance if it is measured on rollouts, and not along the path of training."""
    return method.importance if isinstance(method.importance, GradientImportance) else None


def check_importance(method: Method, anchors: Anchors) -> None:
    """Raise an error if the importance cannot be measured for games, or not with these anchors."""
    if (measured := rollout_importance(method)) is not None:
        if measured.name not in MEASURED:
            raise ConfigError(
                f"For games importance is measured on rollouts, and there is no {measured.name} of them. Leave "
                "fisher and omega at 'published'."
            )
    elif method.importance is not None and anchors == "each":
        raise ConfigError(
            f"{method.importance.name} may be negative, and pulls towards several anchors have no common centre "
            "then. Set anchors=last or leave it out."
        )


def anchor_per_game(method: Method, anchors: Anchors) -> bool:
    """True if every game's importance pulls towards the weights that this game left."""
    if anchors == "published":
        return rollout_importance(method) is not None
    return anchors == "each"


def clip_norms(gradient: Tensor, most: float) -> Tensor:
    """Scale rows of (R, P) with a norm above `most` down to it, in place; return the norms before, (R,).

    On a CPU row by row: the division of one large sum among threads would depend on the number of runs.
    """
    if gradient.is_cuda:
        norms = torch.linalg.vector_norm(gradient, dim=1)
    else:
        norms = torch.stack([torch.linalg.vector_norm(row) for row in gradient])
    gradient.mul_((most / (norms + 1e-6)).clamp(max=1).unsqueeze(1))
    return norms


def merge_anchors(
    importance: Tensor, anchor: Tensor, measured: Tensor, weights: Tensor, games_before: int, how: Merge
) -> tuple[Tensor, Tensor]:
    """Return one importance and anchor in place of two pairs: that of earlier games, and `measured` at `weights`.

    a (x - p)^2 + b (x - q)^2 = (a + b) (x - (a p + b q) / (a + b))^2 + a constant: a sum of parabolas is a parabola,
    so that no pair per game has to be stored. The anchor of a weight without importance is its present value.
    """
    zeros = torch.zeros_like(measured)
    old, new = accumulated(importance, zeros, games_before, how), accumulated(zeros, measured, games_before, how)
    total = old + new
    centre = (old * anchor + new * weights) / torch.where(total > 0, total, torch.ones_like(total))
    return total, torch.where(total > 0, centre, weights)
