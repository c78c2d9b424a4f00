"""Heads that an optimiser need not look at."""

from __future__ import annotations

from torch import Tensor

from kenyon.nets import Net
from kenyon.passes import Idle

FEW = 8  # heads in use among which a pass over all weights looks for its own


def idle_heads(net: Net, used: Tensor) -> Idle | None:
    """All but those in use (n,), where heads are most of a row, as in a long sequence, and begin without momentum."""
    weights = net.layout.segments["head.weight"]
    if len(used) > FEW or 2 * weights.size < net.layout.size:
        return None
    return Idle(weights.start, weights.size // weights.shape[0], weights.stop, used)
