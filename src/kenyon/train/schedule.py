"""How the learning rate falls within a task, and which of its weights the task leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.train.regime import Training


class Plateau:
    """Follows the validation loss: every run's rate falls when its own is tired, and its best weights are kept."""

    def __init__(self, training: Training, theta: Tensor) -> None:
        self.patience, self.drop = training.patience, training.drop
        self.best = theta.clone()  # (R, P) the weights with the lowest validation loss
        self.best_loss, self.waited = (torch.zeros(len(theta), device=theta.device) for _ in range(2))

    def tensors(self) -> dict[str, Tensor]:
        return {"best": self.best, "best_loss": self.best_loss, "waited": self.waited}

    def begin(self, theta: Tensor) -> None:
        self.best.copy_(theta)
        self.best_loss.fill_(torch.inf)
        self.waited.zero_()

    def before_epoch(self, epoch: int, rate: Tensor) -> None: ...

    def follow(self, theta: Tensor, loss: Tensor, rate: Tensor) -> Tensor:
        """After an epoch with validation losses (R,): which runs are tired, (R,) bool. Their rates have dropped."""
        better = loss < self.best_loss
        self.best_loss.copy_(torch.where(better, loss, self.best_loss))
        self.best.copy_(torch.where(better.unsqueeze(1), theta, self.best))
        self.waited.add_(1).masked_fill_(better, 0.0)
        tired = self.waited >= self.patience
        rate.copy_(torch.where(tired, rate / self.drop, rate))
        self.waited.masked_fill_(tired, 0.0)
        return tired

    def finish(self, theta: Tensor) -> None:
        theta.copy_(self.best)


class Step:
    """One fall at a fixed epoch; the last weights are kept."""

    def __init__(self, training: Training, theta: Tensor) -> None:
        self.drop, self.drop_epoch = training.drop, training.drop_epoch

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def begin(self, theta: Tensor) -> None: ...

    def before_epoch(self, epoch: int, rate: Tensor) -> None:
        if epoch == self.drop_epoch:
            rate.div_(self.drop)

    def finish(self, theta: Tensor) -> None: ...


Schedule = Plateau | Step


def choose_schedule(training: Training, theta: Tensor) -> Schedule:
    return Plateau(training, theta) if training.schedule == "plateau" else Step(training, theta)
