"""Runs with a learner for every task, which nothing changes once its task is over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kenyon.nets import Net
from kenyon.train.device import Lanes
from kenyon.train.evaluate import Evaluation, evaluate
from kenyon.train.fleet import Fleet
from kenyon.train.members import member_seed


class Discrete:
    """The learners of all tasks, as rows of their own: before its task, a learner has its own first weights."""

    def __init__(self, net: Net, fleet: Fleet) -> None:
        self.net, self.fleet = net, fleet
        each = (net.initial([member_seed(seed, task) for seed in fleet.seeds]) for task in range(fleet.tasks))
        self.learners = torch.stack(list(each), dim=1)  # (R, T, P)

    def tensors(self) -> dict[str, Tensor]:
        return {"learners": self.learners}

    def begin(self, theta: Tensor, task: int) -> None:
        theta.copy_(self.learners[:, task])

    def finish(self, theta: Tensor, task: int) -> None:
        self.learners[:, task].copy_(theta)

    def evaluate(self, lanes: Lanes, rows: Sequence[int]) -> Evaluation:
        """Every task by its learner."""
        return Evaluation.joined(
            [
                evaluate(self.net, self.learners[:, task].contiguous(), self.fleet, lanes, rows, tasks=(task,))
                for task in range(self.fleet.tasks)
            ]
        )

    @property
    def parameter_count(self) -> int:
        """T backbones, and the head of each task once."""
        net = self.net
        heads = sum(net.layout.segments[name].size for name in net.head_names) if net.shared else 0  # not yet counted
        return net.parameter_count + (self.fleet.tasks - 1) * (net.layout.protected + heads)

    def weights(self, run: int) -> dict[str, Tensor]:
        """One run's by name, with a leading task axis; of each learner only the head that is its own."""
        views = self.net.layout.views(self.learners[run])  # (T, 1, ...) of backbones, (T, T, ...) of heads
        own = torch.arange(self.fleet.tasks, device=self.learners.device)
        head = self.net.heads_of(range(self.fleet.tasks))
        return {name: view[own, head] if name in self.net.per_head else view[:, 0] for name, view in views.items()}
