"""Importances that are measured along the way: from the gradient and the change of weights of every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kenyon.methods.importance import Accumulate, GradientImportance, Merge, check_merge
from kenyon.methods.mechanism import Steps, Tracker
from kenyon.methods.penalties.strength import check_word

WalkForm = Literal["published", "paper"]


@dataclass(frozen=True)
class PathImportance:
    """Synaptic intelligence: path integral / (total change^2 + damping), summed over tasks."""

    name: str = "si"
    damping: float = 0.01
    accumulate: Merge = "sum"
    factor = 1.0  # of the quadratic penalty, as published

    def __post_init__(self) -> None:
        check_merge(self.accumulate)

    def track(self, trainer: Steps) -> Tracker:
        return _Path(trainer, self)

    def extend(self, path: Tensor, gradient: Tensor, change: Tensor) -> None:
        """Add a step to the path integral, in place: -gradient * change of the weights."""
        path.addcmul_(gradient, change, value=-1)

    def weigh(self, path: Tensor, change: Tensor) -> Tensor:
        """The importance of weights, from their path integral and their change over the whole task."""
        return path / (change.square() + self.damping)


class _Changes(Tracker):
    """The protected weights before the current step, their gradient and their change."""

    def __init__(self, trainer: Steps) -> None:
        self.trainer = trainer
        self.before = torch.zeros_like(trainer.anchor)  # (R, Pp)

    def before_step(self) -> None:
        self.before.copy_(self._protected(self.trainer.theta))

    @property
    def change(self) -> Tensor:
        return self._protected(self.trainer.theta) - self.before

    @property
    def gradient(self) -> Tensor:
        return self._protected(self.trainer.gradient)

    def _protected(self, rows: Tensor) -> Tensor:
        return rows[:, : self.before.shape[1]]


class _Path(_Changes):
    def __init__(self, trainer: Steps, how: PathImportance) -> None:
        super().__init__(trainer)
        self.how = how
        self.path = torch.zeros_like(trainer.anchor)  # (R, Pp)

    def tensors(self) -> dict[str, Tensor]:
        return {"path": self.path}

    def start_task(self) -> None:
        self.path.zero_()

    def after_step(self) -> None:
        self.how.extend(self.path, self.gradient, self.change)

    def estimate(self) -> Tensor:
        return self.how.weigh(self.path, self._protected(self.trainer.theta) - self.trainer.anchor)


@dataclass(frozen=True)
class WalkImportance:
    """Riemannian walk (RWalk): a Fisher information that is averaged over steps, and a score of the path.

    Every step with gradient g (of the whole loss) and change d of the weights moves
        F <- alpha g^2 + (1 - alpha) F    and    s <- s - g d / (F d^2 / 2 + damping):
    how much the loss fell for the distance walked, where the Fisher information measures distances. Both go on from
    task to task; the score is halved when a task ends.

    published: importance F + s, as the baselines of this line of work have it, with alpha = 0.9. They count
               the return to the best weights at a task's end as part of the next step; here a step is a step.
    paper:     each scaled to [0, 1] over all weights, and scores below 0 count as 0 (Chaudhry et al. 2018).
    """

    name: str = "rwalk"
    form: WalkForm = "published"
    alpha: float = 0.9
    damping: float = 0.01
    accumulate: Accumulate = "last"
    factor = 1.0  # of the quadratic penalty, as published

    def __post_init__(self) -> None:
        check_word("form", self.form, WalkForm)

    def track(self, trainer: Steps) -> Tracker:
        return _Walk(trainer, self)


class _Walk(_Changes):
    def __init__(self, trainer: Steps, how: WalkImportance) -> None:
        super().__init__(trainer)
        self.how = how
        self.fisher, self.score = (torch.zeros_like(trainer.anchor) for _ in range(2))  # (R, Pp)

    def tensors(self) -> dict[str, Tensor]:
        return {"walk_fisher": self.fisher, "walk_score": self.score}

    def start_task(self) -> None:
        self.score.mul_(0.5)

    def after_step(self) -> None:
        gradient, change = self.gradient, self.change
        # A run without a batch has no gradient of its own: its Fisher information stays, and so do its weights.
        self.fisher.lerp_(gradient.square(), (self.how.alpha * self.trainer.present).unsqueeze(1))
        distance = (self.fisher * change.square()).mul_(0.5).add_(self.how.damping)
        self.score.sub_(gradient.mul(change).div_(distance))

    def estimate(self) -> Tensor:
        if self.how.form == "published":
            return self.fisher + 0.5 * self.score
        return _scaled(self.fisher) + _scaled(self.score.clamp(min=0))


def _scaled(rows: Tensor) -> Tensor:
    """Rows (R, Pp), each by its largest number; a row of zeros stays."""
    most = rows.amax(1, keepdim=True)
    return rows / torch.where(most > 0, most, torch.ones_like(most))


def si() -> PathImportance:
    """Synaptic intelligence with the published damping."""
    return PathImportance()


def rwalk(form: WalkForm = "published") -> WalkImportance:
    """Riemannian walk, in the form that the baselines have or in that of its paper."""
    return WalkImportance(form=form)


TrackedImportance = PathImportance | WalkImportance
Importance = GradientImportance | TrackedImportance
