"""The passes that a method makes over each task's data. Most make one: they learn the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kenyon.importance import cross_entropy
from kenyon.nets import Net, Outputs


@dataclass(frozen=True)
class Stage:
    """What is computed of a batch, and the loss of each of its samples.

    Only what the loss depends on is trained: to hold a part of the network still, `forward` detaches it.
    """

    name: str
    forward: Callable[..., Outputs]  # as Net.forward, with the net as its first argument
    loss: Callable[[Outputs, Tensor], Tensor]  # (outputs, labels (..., B)) -> (..., B)


def _surprise(out: Outputs, labels: Tensor) -> Tensor:
    return cross_entropy(out.logits, labels)


LEARN = Stage("learn", Net.forward, _surprise)
