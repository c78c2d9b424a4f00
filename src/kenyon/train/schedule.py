"""How the learning rate falls within a task, and which of its weights the task leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.train.regime import Training

# How far above its best a loss must be, in what it could still change at the rates to come, for a run to be settled.
SAFETY = 5.0


class Plateau:
    """Follows the validation loss: every run's rate falls when its own is tired, and its best weights are kept.

    A run is settled when no epoch to come can bring better weights: its rate falls, and its loss is above the best by
    `SAFETY` times all that it could still change. Nothing is kept of a settled run any more, whoever trains on beside
    it. What it could still change: as long as it is not better, the rate falls every `patience` epochs, and with it
    the changes: patience * swing * (1 / drop + 1 / drop^2 + ...), swing being the largest change from one epoch to
    the next at the rate before.
    """

    def __init__(self, training: Training, theta: Tensor) -> None:
        self.patience, self.drop = training.patience, training.drop
        # In swings; rates that do not fall never settle.
        self.reach = SAFETY * self.patience / (self.drop - 1) if self.drop > 1 else torch.inf
        self.best = theta.clone()  # (R, P) the weights with the lowest validation loss

        def zeros() -> Tensor:
            return torch.zeros(len(theta), device=theta.device)

        self.best_loss, self.waited = zeros(), zeros()
        self.before, self.swing, self.settled = zeros(), zeros(), zeros()

    @property
    def settles(self) -> bool:
        return self.reach < torch.inf

    def never_settle(self) -> None:
        self.reach = torch.inf

    def tensors(self) -> dict[str, Tensor]:
        names = ("best", "best_loss", "waited", "before", "swing", "settled")
        return {name: getattr(self, name) for name in names}

    def begin(self, theta: Tensor) -> None:
        self.best.copy_(theta)
        self.best_loss.fill_(torch.inf)
        self.swing.fill_(torch.inf)  # the first rate has none before it
        for tensor in (self.waited, self.before, self.settled):
            tensor.zero_()

    def before_epoch(self, epoch: int, rate: Tensor) -> None: ...

    def follow(self, theta: Tensor, loss: Tensor, rate: Tensor) -> Tensor:
        """After an epoch with validation losses (R,): which runs are tired, (R,) bool. Their rates have dropped."""
        better = (loss < self.best_loss) & (self.settled == 0)
        self.best_loss.copy_(torch.where(better, loss, self.best_loss))
        self.best.copy_(torch.where(better.unsqueeze(1), theta, self.best))
        self.waited.add_(1).masked_fill_(better, 0.0)
        self.swing.copy_(torch.maximum(self.swing, (loss - self.before).abs()))
        self.before.copy_(loss)
        tired = self.waited >= self.patience
        rate.copy_(torch.where(tired, rate / self.drop, rate))
        self.settled.masked_fill_(tired & (loss - self.best_loss > self.reach * self.swing), 1.0)
        self.waited.masked_fill_(tired, 0.0)
        self.swing.masked_fill_(tired, 0.0)
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
