"""Importances that are measured along the way: from the gradient and the change of weights of every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.hooks import Tracking, Work
from kenyon.importance import Accumulate, GradientImportance


@dataclass(frozen=True)
class PathImportance:
    """Synaptic intelligence: path integral / (total change^2 + damping), summed over tasks."""

    name: str = "si"
    damping: float = 0.01
    accumulate: Accumulate = "sum"

    def track(self, work: Work) -> Tracking:
        return _Path(work, self.damping)


class _Path(Tracking):
    def __init__(self, work: Work, damping: float) -> None:
        self.work, self.damping = work, damping
        self.path = torch.zeros_like(work.anchor)  # (R, Pp)
        self.before = torch.zeros_like(work.anchor)

    def tensors(self) -> dict[str, Tensor]:
        return {"path": self.path}

    def begin_task(self) -> None:
        self.path.zero_()

    def before_update(self) -> None:
        self.before.copy_(self._protected(self.work.theta))

    def after_update(self) -> None:
        change = self._protected(self.work.theta) - self.before
        self.path.addcmul_(self._protected(self.work.gradient), change, value=-1)

    def estimate(self) -> Tensor:
        change = self._protected(self.work.theta) - self.work.anchor
        return self.path / (change.square() + self.damping)

    def _protected(self, rows: Tensor) -> Tensor:
        return rows[:, : self.path.shape[1]]


def si() -> PathImportance:
    return PathImportance()


TrackedImportance = PathImportance
Importance = GradientImportance | TrackedImportance
