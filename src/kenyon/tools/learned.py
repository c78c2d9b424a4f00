"""Weights that a loss learns for itself, beside those of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.tools.processes import of_first, processes, summed


class Learned(nn.Module):
    """A loss with parameters of its own, for the optimiser that trains the model.

    They are drawn from N(0, 1), anew when a task begins. Where several processes train together, all have those of
    the first and average their gradients, so such a loss needs no DistributedDataParallel.
    """

    learned: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        """`shape`: of what is learned; None: nothing is, and all weights are 1."""
        super().__init__()
        self.tasks_begun = 0
        self.register_parameter("learned", None if shape is None else nn.Parameter(torch.empty(shape)))
        self._draw()

    def begin_task(self) -> None:
        """At the start of every task, before its optimiser is made."""
        self.tasks_begun += 1
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        if self.learned is not None:
            self.learned.normal_()
            if processes() > 1:
                self.learned.copy_(of_first(self.learned))

    def averaged(self) -> Tensor | None:
        """What is learned, with a gradient that is the mean of all processes'."""
        if self.learned is None or processes() == 1:
            return self.learned
        return _Averaged.apply(self.learned)  # type: ignore[no-untyped-call]

    def get_extra_state(self) -> dict[str, int]:
        return {"tasks_begun": self.tasks_begun}

    def set_extra_state(self, state: dict[str, int]) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("tasks_begun"), int):
            raise ConfigError(f"This is no state of {type(self).__name__}: give what its state_dict() gave.")
        self.tasks_begun = state["tasks_begun"]


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return summed(gradient) / processes()
