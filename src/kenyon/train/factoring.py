"""Which layers keep their gradients as factors: large dense ones, where a GPU takes runs one after another."""

from __future__ import annotations

from torch import nn

from kenyon.factors import Factors
from kenyon.nets import Net
from kenyon.nets.products import MOST, available
from kenyon.nets.stacked import Stacked

LARGE = 2**20  # weights; of fewer, what is saved is less than what a pass of their own costs


def factors_of_layers(net: Net, runs: int, batch: int) -> dict[str, Factors]:
    """Room for the factors of every layer that is worth it, by the name of its weights, in the order of the rows."""
    execute = net.execute
    if not isinstance(execute, Stacked) or net.columns is not None or batch > MOST or not _pays(net):
        return {}
    found: dict[str, Factors] = {}
    for step in execute.steps:
        # Factors are kept in the backward pass of the layer's bias.
        if isinstance(step.layer, nn.Linear) and step.layer.bias is not None:
            segment = net.layout.segments[f"{step.name}.weight"]
            K, O, I = segment.shape  # noqa: E741
            if segment.size >= LARGE:
                sizes = ((K, batch, O), (K, batch, I), (K, O, I))
                found[segment.name] = Factors(segment.start, *(net.zeros(runs, *size) for size in sizes))
    return found


def _pays(net: Net) -> bool:
    return available(net.zeros(1))
