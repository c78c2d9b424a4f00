"""The expanded network of AF-2."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kenyon.methods.importance import GradientImportance, fisher_published
from kenyon.methods.mechanism import Attached, Context
from kenyon.random import Purpose


@dataclass(frozen=True)
class ExpandedNetwork:
    """A second network that learns every task alone (AFEC): one epoch before each epoch of the main network, after
    which its Fisher information is measured. It starts from the same first weights and goes on from task to task.

    waits: whether it begins to learn the first task only when the learning rate falls for the first time. So it is in
    the authors' code, where the optimiser that it has until then moves another network. Where the rate falls by the
    calendar and not by the validation loss, it does not learn the first task at all.
    """

    importance: GradientImportance = field(default_factory=fisher_published)
    waits: bool = False

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        return (self.importance,)

    def attach(self, context: Context) -> Attached:
        return _Expanded(context, self.importance, self.waits)


class _Expanded(Attached):
    def __init__(self, context: Context, measured: GradientImportance, waits: bool) -> None:
        self.context, self.measured = context, measured
        self.theta = context.theta.clone()  # (R, P)
        self.waiting = torch.ones_like(self.theta[:, :1], dtype=torch.bool) if waits else None
        self.importance = torch.zeros_like(context.anchor)  # (R, Pp)
        self.optimizer = context.new_optimizer(self.theta)

    def tensors(self) -> dict[str, Tensor]:
        momentum = {f"expanded_{name}": tensor for name, tensor in self.optimizer.tensors().items()}
        waiting = {} if self.waiting is None else {"expanded_waiting": self.waiting}
        return {**self.shown(), **momentum, **waiting}

    def shown(self) -> dict[str, Tensor]:
        return {"expanded": self.theta, "expanded_importance": self.importance}

    def start_task(self) -> None:
        if not self.context.carries:
            self.optimizer.restart()
        if self.waiting is not None and self.context.task > 0:
            self.waiting.zero_()

    def before_epoch(self) -> None:
        if (dropped := self.context.dropped) is not None:  # restart where the rate has just fallen
            self.optimizer.restart(dropped > 0)
            if self.waiting is not None:
                self.waiting.masked_fill_((dropped > 0).unsqueeze(1), False)
        if self.waiting is None or self.context.task > 0:
            self.context.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
        else:
            stay = self.theta.clone()
            self.context.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
            self.theta.copy_(torch.where(self.waiting, stay, self.theta))
            self.optimizer.restart(self.waiting.squeeze(1))
        self.context.measure(self.measured, self.theta, Purpose.EXPANDED)
        self.importance.copy_(self.context.estimate)

    def _expanded_step(self) -> None:
        self.context.plain_step(self.theta, self.optimizer)

    def finish_task(self) -> None:
        net = self.context.net
        net.statistics.hand_on(net.layout, self.theta, net.head_of(self.context.task))
