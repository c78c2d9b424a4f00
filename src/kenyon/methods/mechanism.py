"""Where methods act besides adding penalties to the loss: at the moments of the loop.

A mechanism is a value, like a penalty. When training begins it is attached to the fleet at work and gives its hooks,
which the loop calls at their moments and which keep the mechanism's own tensors. Hooks see all runs at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from kenyon.backends.optimizers import Optimiser
from kenyon.random import Purpose

if TYPE_CHECKING:
    from kenyon.methods.importance import GradientImportance
    from kenyon.models import Net
    from kenyon.models.nodes import Nodes


class Moving(Protocol):
    """A fleet whose weights move, step by step, whatever it learns. Every tensor has a leading run axis."""

    theta: Tensor  # (R, P) stays in place, like `anchor`
    anchor: Tensor  # (R, Pp) the protected weights that the task before left, where the method has an importance

    @property
    def gradient(self) -> Tensor:
        """(R, P) of the step at hand, whole where hooks act `within_steps`; penalties on weights included where one
        `needs_gradient`.
        """

    @property
    def present(self) -> Tensor:
        """(R,) 1 for runs that have a batch in the step at hand; the others stay put."""


class Work(Moving, Protocol):
    """The fleet at work, as hooks see it."""

    net: Net
    rate: Tensor  # (R,) stays in place

    @property
    def estimate(self) -> Tensor:
        """(R, Pp) what `measure` found."""

    @property
    def task(self) -> int:
        """How many tasks were learned before this one."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the runs."""

    @property
    def carries(self) -> bool:
        """Whether momentum goes on from task to task."""

    def new_optimiser(self, theta: Tensor) -> Optimiser: ...

    def train_epoch(self, step: Callable[[], None], theta: Tensor, purpose: int = 0) -> None:
        """All batches of the task in a new order, by steps that change theta (R, P); `purpose` keeps the draws apart
        from others'.
        """

    def plain_step(self, theta: Tensor, optimiser: Optimiser) -> None:
        """One batch: the gradient of the cross-entropy alone, then the optimiser."""

    def measure(self, importance: GradientImportance, theta: Tensor, purpose: Purpose) -> None:
        """Importance of `theta` for the task's training data, into `estimate`."""

    def activations(self, nodes: Nodes) -> Tensor:
        """The mean |activation| of every hidden node over the task's training data, dropout on: (R, N)."""


class Hooks:
    """What happens at the moments of the loop: nothing, unless a mechanism says otherwise.

    `before_update` and `after_update` are part of the captured step: they work on tensors that stay in place, and
    must not ask the device for values.
    """

    needs_gradient = False  # whether `work.gradient` has to hold the whole gradient after the update
    every_epoch = True  # whether it has something to do in every epoch, also in those whose weights nobody keeps

    @property
    def within_steps(self) -> bool:
        """Whether there is something to do between the batches of an epoch: gradients are all written down then, and
        weights may change.
        """
        own = type(self)
        idle = own.before_update is Hooks.before_update and own.after_update is Hooks.after_update
        return self.needs_gradient or not idle

    def tensors(self) -> dict[str, Tensor]:
        """The hooks' part of the state, saved and resumed with everything else."""
        return {}

    def shown(self) -> dict[str, Tensor]:
        """What penalties on weights may look at of it, by the names that `penalties.Weights` has for it."""
        return {}

    def begin_task(self) -> None:
        """The weights are those that the task before left."""

    def before_epoch(self) -> None: ...

    def before_update(self) -> None:
        """The gradient is there, and the weights have not moved."""

    def after_update(self) -> None: ...

    def after_epoch(self) -> None:
        """Before the weights are validated."""

    def rate_dropped(self, runs: Tensor) -> None:
        """Of these runs (R,) bool the learning rate fell and the optimiser began anew."""

    def finish_task(self) -> None:
        """The weights are those that the task leaves."""


class Mechanism(Protocol):
    """What a method does besides adding penalties; a value, which becomes hooks when training begins."""

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        """The importances that it will ask `Work.measure` for."""

    def attach(self, work: Work) -> Hooks: ...


class Tracking(Hooks, ABC):
    """Hooks that measure an importance along the way, from every step."""

    needs_gradient = True

    @abstractmethod
    def estimate(self) -> Tensor:
        """The importance of the protected weights for the task, (R, Pp), when its last weights are known."""
