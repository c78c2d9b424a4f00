"""The passes that a method makes over each task's data. Most make one: they learn the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kenyon.losses import weighted_cross_entropy
from kenyon.nets import Net, Outputs


@dataclass(frozen=True)
class Stage:
    """What is computed of a batch, and its loss.

    Only what the loss depends on is trained: to hold a part of the network still, `forward` detaches it.
    """

    name: str
    forward: Callable[..., Outputs]  # as Net.forward, with the net as its first argument
    # (outputs, labels (..., B), weights of samples (..., B)) -> the weighted sum over samples, (...)
    loss: Callable[[Outputs, Tensor, Tensor], Tensor]


def _surprise(out: Outputs, labels: Tensor, weight: Tensor) -> Tensor:
    return weighted_cross_entropy(out.logits, labels, weight)


LEARN = Stage("learn", Net.forward, _surprise)
