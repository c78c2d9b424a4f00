"""The expanded network of AF-2."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kenyon.methods.importance import GradientImportance, fisher_published
from kenyon.methods.mechanism import Hooks, Work
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

    def attach(self, work: Work) -> Hooks:
        return _Expanded(work, self.importance, self.waits)


class _Expanded(Hooks):
    def __init__(self, work: Work, measured: GradientImportance, waits: bool) -> None:
        self.work, self.measured = work, measured
        self.waiting = torch.ones(len(work.theta), 1, dtype=torch.bool, device=work.theta.device) if waits else None
        self.theta = work.theta.clone()  # (R, P)
        self.importance = torch.zeros_like(work.anchor)  # (R, Pp)
        self.optimiser = work.new_optimiser(self.theta)

    def tensors(self) -> dict[str, Tensor]:
        momentum = {f"expanded_{name}": tensor for name, tensor in self.optimiser.tensors().items()}
        waiting = {} if self.waiting is None else {"expanded_waiting": self.waiting}
        return {**self.shown(), **momentum, **waiting}

    def shown(self) -> dict[str, Tensor]:
        return {"expanded": self.theta, "expanded_importance": self.importance}

    def begin_task(self) -> None:
        if not self.work.carries:
            self.optimiser.restart()
        if self.waiting is not None and self.work.task > 0:
            self.waiting.zero_()

    def before_epoch(self) -> None:
        if self.waiting is None or self.work.task > 0:
            self.work.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
        else:
            stay = self.theta.clone()
            self.work.train_epoch(self._expanded_step, self.theta, Purpose.EXPANDED)
            self.theta.copy_(torch.where(self.waiting, stay, self.theta))
            self.optimiser.restart(self.waiting.squeeze(1))
        self.work.measure(self.measured, self.theta, Purpose.EXPANDED)
        self.importance.copy_(self.work.estimate)

    def _expanded_step(self) -> None:
        self.work.plain_step(self.theta, self.optimiser)

    def finish_task(self) -> None:
        net = self.work.net
        net.statistics.hand_on(net.layout, self.theta, net.head_of(self.work.task))

    def rate_dropped(self, runs: Tensor) -> None:
        self.optimiser.restart(runs)
        if self.waiting is not None:
            self.waiting.masked_fill_(runs.unsqueeze(1), False)
