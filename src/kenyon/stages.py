"""The passes that a method makes over each task's data. Most make one: they learn the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from torch import Tensor

from kenyon.losses import weighted_cross_entropy
from kenyon.nets import Net, Outputs, Pictures
from kenyon.nets.layout import Rows
from kenyon.random import Noise


@dataclass(frozen=True)
class Stage:
    """What is computed of a batch, and its loss.

    Only what the loss depends on is trained: to hold a part of the network still, `forward` detaches it.
    """

    name: str
    forward: Callable[..., Outputs]  # as Net.forward, with the net as its first argument
    # (outputs, what they should be, weights of samples (..., B)) -> the weighted sum over samples, (...). They should
    # be the labels (..., B), or what a teacher says, its logits (..., B, C).
    loss: Callable[[Outputs, Tensor, Tensor], Tensor]
    # As `forward`, without noise. Nothing that the stage trains changes what it says of an image.
    teacher: Callable[..., Outputs] | None = None
    active_column: bool = False  # needs a network that has one


def _surprise(out: Outputs, labels: Tensor, weight: Tensor) -> Tensor:
    return weighted_cross_entropy(out.logits, labels, weight)


def _active_column(
    net: Net,
    row: Rows,
    images: Tensor | Pictures,
    heads: Tensor,
    member: Tensor | None = None,
    *,
    noise: Tensor | Noise | None = None,
    own: bool = False,
) -> Outputs:
    return Outputs(net.active_logits(row, images, heads, noise), None)


def _imitation(out: Outputs, said: Tensor, weight: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(teacher || prediction), both softened: logits / T. A class that is not there counts 0 * 0."""
    log_p, log_q = (said / temperature).log_softmax(-1), (out.logits / temperature).log_softmax(-1)
    return temperature**2 * ((log_p.exp() * (log_p - log_q)).sum(-1) * weight).sum(-1)


LEARN = Stage("learn", Net.forward, _surprise)

# Progress & Compress: the active column learns the task while the knowledge base, which is the network itself, is
# held still; then the knowledge base, with dropout, learns from the column's predictions without, which stay as they
# are.
PROGRESS = Stage("progress", _active_column, _surprise, active_column=True)


@cache
def compress(temperature: float = 1.0) -> Stage:
    loss = _imitation if temperature == 1 else partial(_imitation, temperature=temperature)
    return Stage("compress", Net.forward, loss, teacher=_active_column, active_column=True)
