"""Importances along the optimization path, from the gradient and the change of weights in every step."""

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
        """Return the importance of weights from their path integral and their change over the task."""
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

    Every step with gradient g (of the whole loss) and change d of the weights updates
        F <- alpha g^2 + (1 - alpha) F    and    s <- s - g d / (F d^2 / 2 + damping):
    the decrease of the loss per distance, as the Fisher information measures distances. Both are carried from task to
    task; the score is halved when a task ends.

    published: importance F + s, as in the baselines of this line of work, with alpha = 0.9. They count the return to
               the best weights at the end of a task as part of the next step, which is left out here.
    paper:     both scaled to [0, 1] over all weights, with negative scores set to 0 (Chaudhry et al. 2018).
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
        # Runs without a batch have no gradient: their Fisher information and their weights stay.
        self.fisher.lerp_(gradient.square(), (self.how.alpha * self.trainer.present).unsqueeze(1))
        distance = (self.fisher * change.square()).mul_(0.5).add_(self.how.damping)
        self.score.sub_(gradient.mul(change).div_(distance))

    def estimate(self) -> Tensor:
        if self.how.form == "published":
            return self.fisher + 0.5 * self.score
        return _scaled(self.fisher) + _scaled(self.score.clamp(min=0))


def _scaled(rows: Tensor) -> Tensor:
    """Return rows (R, Pp) divided by their maxima; rows of zeros stay."""
    most = rows.amax(1, keepdim=True)
    return rows / torch.where(most > 0, most, torch.ones_like(most))


def si() -> PathImportance:
    """Synaptic intelligence with the published damping."""
    return PathImportance()


def rwalk(form: WalkForm = "published") -> WalkImportance:
    """Riemannian walk, in the published form of the baselines or in that of its paper."""
    return WalkImportance(form=form)


TrackedImportance = PathImportance | WalkImportance
Importance = GradientImportance | TrackedImportance
