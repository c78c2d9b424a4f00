"""How much each weight matters for the games before, and where it is held.

Measured on fresh play of the finished game, which fills a rollout as long as training's. Ppo.importance_rollouts
times it is cut into as many minibatches as training has, and each time Ppo.importance_steps of its steps are new:

    Fisher  the gradient of the PPO loss of a minibatch, its norm clipped as in training; squares
    MAS     the gradient of the summed L2 norms of the vectors that the heads see, the learners' sum; absolute values

Both are summed over all minibatches and divided by the number of rollouts. The published lambdas belong to these
scales: a minibatch is as large as in training, and MAS is a sum over the samples of a rollout, not their mean.

    SI, RWalk  along the way, as for images, from clipped gradients
"""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.methods.importance import GradientImportance, Merge, accumulated
from kenyon.rl.ppo import Anchors

MEASURED = ("fisher_published", "mas")


def check_importance(method: Method, anchors: Anchors) -> None:
    importance = method.importance
    if isinstance(importance, GradientImportance):
        if importance.name not in MEASURED:
            raise ConfigError(
                f"For games importance is measured on rollouts, and there is no {importance.name} of them. Leave "
                "fisher and omega at 'published'."
            )
    elif importance is not None and anchors == "each":
        raise ConfigError(
            f"{importance.name} may be negative, and pulls towards several anchors have no common centre then. "
            "Set anchors=last or leave it out."
        )


def own_anchors(method: Method, anchors: Anchors) -> bool:
    """Whether every game's importance holds weights where that game left them."""
    if anchors == "published":
        return isinstance(method.importance, GradientImportance)
    return anchors == "each"


def clip_norms(gradient: Tensor, most: float) -> Tensor:
    """Scale every row of (R, P) that is longer than `most` down to it, in place. Returns how long they were (R,).

    On a CPU row by row: how a large sum is shared among threads would otherwise depend on the number of runs.
    """
    if gradient.is_cuda:
        norms = torch.linalg.vector_norm(gradient, dim=1)
    else:
        norms = torch.stack([torch.linalg.vector_norm(row) for row in gradient])
    gradient.mul_((most / (norms + 1e-6)).clamp(max=1).unsqueeze(1))
    return norms


def merged(
    importance: Tensor, anchor: Tensor, found: Tensor, weights: Tensor, games_before: int, how: Merge
) -> tuple[Tensor, Tensor]:
    """One importance and anchor in place of two pairs: those of the games before, and what was found at `weights`.

    a (x - p)^2 + b (x - q)^2 = (a + b) (x - (a p + b q) / (a + b))^2 + a constant: parabolas add up to a parabola.
    So one pair a game need not be kept. A weight that matters to no game is held at its present value, by nothing.
    """
    nothing = torch.zeros_like(found)
    old, new = accumulated(importance, nothing, games_before, how), accumulated(nothing, found, games_before, how)
    total = old + new
    centre = (old * anchor + new * weights) / torch.where(total > 0, total, torch.ones_like(total))
    return total, torch.where(total > 0, centre, weights)
