"""Mechanisms: what a method does besides adding penalties, at four named moments of the training loop.

A mechanism is a value, like a penalty. When training begins it is attached to the trainer and becomes an `Attached`,
which keeps the mechanism's tensors. The loop calls its moments in plain sight:

    start_task      before the first epoch of a task
    before_epoch    before the batches of an epoch
    after_epoch     after them, before the weights are validated
    finish_task     when the weights of the task are final, before its importance is measured

Importances that are accumulated along the optimization path are measured by a `Tracker`, from every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from kenyon.backends.optimizers import Optimizer
    from kenyon.methods.importance import GradientImportance
    from kenyon.models import Net
    from kenyon.models.nodes import Nodes
    from kenyon.random import Purpose


class Steps(Protocol):
    """The part of a trainer that a tracker sees. Every tensor has a leading run axis."""

    theta: Tensor  # (R, P) stays in place, like `anchor`
    anchor: Tensor  # (R, Pp) the protected weights that the previous task left

    @property
    def gradient(self) -> Tensor:
        """(R, P) the gradient of the current step, penalties on weights included."""

    @property
    def present(self) -> Tensor:
        """(R,) 1 for runs that have a batch in the current step, 0 for runs that stay put."""


class Context(Steps, Protocol):
    """The part of a trainer that mechanisms see: all runs at once."""

    net: Net
    rate: Tensor  # (R,) stays in place

    @property
    def dropped(self) -> Tensor | None:
        """(R,) 1 for runs whose learning rate fell after the last epoch; None if rates do not follow the loss."""

    @property
    def estimate(self) -> Tensor:
        """(R, Pp) the result of `measure`."""

    @property
    def task(self) -> int:
        """The number of tasks learned before the current one."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs."""

    @property
    def carries(self) -> bool:
        """True if momentum is carried from task to task."""

    def new_optimizer(self, theta: Tensor) -> Optimizer: ...

    def train_epoch(self, step: Callable[[], None], theta: Tensor, purpose: int = 0) -> None:
        """Run `step` for all batches of the task in a new order; steps change theta (R, P). `purpose` separates the
        random numbers from those of other passes.
        """

    def plain_step(self, theta: Tensor, optimizer: Optimizer) -> None:
        """Update theta by one batch: the gradient of the cross-entropy alone."""

    def measure(self, importance: GradientImportance, theta: Tensor, purpose: Purpose) -> None:
        """Measure the importance of `theta` on the task's training data, into `estimate`."""

    def activations(self, nodes: Nodes) -> Tensor:
        """Return the mean |activation| of every hidden node on the task's training data, dropout on: (R, N)."""


class Attached:
    """A mechanism in one training: its tensors and its moments, all without effect unless overridden."""

    every_epoch = True  # acts in every epoch, also in those whose weights are discarded
    mask: Tensor | None = None  # (R, P) weights are multiplied by it after every step

    def tensors(self) -> dict[str, Tensor]:
        """Return the state, which checkpoints save."""
        return {}

    def shown(self) -> dict[str, Tensor]:
        """Return the tensors that penalties on weights see, by their names in `penalties.Weights`."""
        return {}

    def start_task(self) -> None: ...

    def before_epoch(self) -> None: ...

    def after_epoch(self) -> None: ...

    def finish_task(self) -> None: ...


class Mechanism(Protocol):
    """The value in a `Method`."""

    @property
    def measures(self) -> tuple[GradientImportance, ...]:
        """The importances that it passes to `Context.measure`."""

    def attach(self, context: Context) -> Attached: ...


class Tracker(ABC):
    """Measures an importance along the optimization path. Its steps are part of the captured step: they work on
    tensors that stay in place, and do not read values from the device.
    """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the state, which checkpoints save."""

    @abstractmethod
    def start_task(self) -> None: ...

    @abstractmethod
    def before_step(self) -> None:
        """The gradient is computed, and the weights have not moved."""

    @abstractmethod
    def after_step(self) -> None: ...

    @abstractmethod
    def estimate(self) -> Tensor:
        """Return the importance of the protected weights for the task, (R, Pp), from its final weights."""
