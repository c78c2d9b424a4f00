"""The passes that a method makes over each task's data. Most make one: they learn the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
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
    # (outputs, labels (..., B), weights of samples (..., B)) -> the weighted sum over samples, (...)
    loss: Callable[[Outputs, Tensor, Tensor], Tensor]


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


def _beside_active_column(
    net: Net,
    row: Rows,
    images: Tensor | Pictures,
    heads: Tensor,
    member: Tensor | None = None,
    *,
    noise: Tensor | Noise | None = None,
    own: bool = False,
) -> Outputs:
    """The knowledge base, with dropout; what it is to say comes from the active column, without."""
    with torch.no_grad():
        target = net.active_logits(row, images, heads)
    return replace(net.forward(row, images, heads, member, noise=noise, own=own), target=target)


def _imitation(out: Outputs, labels: Tensor, weight: Tensor) -> Tensor:
    """KL(target || prediction). A class that is not there counts 0 * 0."""
    assert out.target is not None
    log_p, log_q = out.target.log_softmax(-1), out.logits.log_softmax(-1)
    return ((log_p.exp() * (log_p - log_q)).sum(-1) * weight).sum(-1)


LEARN = Stage("learn", Net.forward, _surprise)

# Progress & Compress: the active column learns the task while the knowledge base, which is the network itself, is
# held still; then the knowledge base learns from the column's predictions, which stay as they are.
PROGRESS = Stage("progress", _active_column, _surprise)
COMPRESS = Stage("compress", _beside_active_column, _imitation)
