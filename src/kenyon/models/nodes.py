"""Hidden nodes of a network, for methods that select them (AGS-CL): channels of convolutions, units of dense layers.

The group of a node is its incoming weights and its bias. Values per node lie along one axis, (R, N), layer by layer
and within a layer learner by learner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import DropoutSite, known_layers
from kenyon.backends.layout import aligned_alone
from kenyon.errors import ConfigError
from kenyon.random import Noise

if TYPE_CHECKING:
    from kenyon.models.ensemble import Net

# Nonlinearities that may follow a layer and be part of the activation of its nodes.
_ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU)


@dataclass(frozen=True)
class NodeLayer:
    name: str
    size: int  # nodes of one learner
    fan_in: int  # weights into one node
    bias: bool


class Nodes:
    """The positions of the groups of all nodes in the rows of runs."""

    def __init__(self, net: Net) -> None:
        if not known_layers(net.backbone, net.input_shape):
            raise ConfigError(
                "Nodes are known of backbones that are an nn.Sequential of convolutions, dense layers and layers "
                "without parameters between them. Build this backbone of those, or choose another method."
            )
        self.net, self.backbone, self.learners = net, cast("nn.Sequential", net.backbone), net.learners
        segments = net.layout.segments
        weights = {name: segments.get(f"{name}.weight") for name in self.backbone._modules}  # (K, n, *inputs)
        self.layers = tuple(
            NodeLayer(name, weight.shape[1], prod(weight.shape[2:]), f"{name}.bias" in segments)
            for name, weight in weights.items()
            if weight is not None
        )
        self.count = self.learners * sum(layer.size for layer in self.layers)

    def per_layer(self, values: Tensor) -> list[Tensor]:
        """Return views of values (R, N) as (R, K, n) for every layer."""
        parts = values.split([self.learners * layer.size for layer in self.layers], dim=1)
        return [p.unflatten(1, (self.learners, layer.size)) for p, layer in zip(parts, self.layers, strict=True)]

    def groups(self, rows: Tensor, layer: NodeLayer) -> Tensor:
        """Return a copy of the groups of a layer's nodes: (R, K, n, fan_in), or fan_in + 1 with the bias last."""
        weight = self.net.layout.view(rows, f"{layer.name}.weight").flatten(3)
        if not layer.bias:
            return weight.clone()
        return torch.cat([weight, self.net.layout.view(rows, f"{layer.name}.bias").unsqueeze(3)], dim=3)

    def put(self, rows: Tensor, layer: NodeLayer, groups: Tensor) -> None:
        """Write groups (R, K, n, fan_in or one more), or values that broadcast to them, into rows."""
        weight = self.net.layout.view(rows, f"{layer.name}.weight")
        groups = groups.expand(*weight.shape[:3], -1)
        weight.copy_(groups[..., : layer.fan_in].reshape(weight.shape))
        if layer.bias:
            self.net.layout.view(rows, f"{layer.name}.bias").copy_(groups[..., layer.fan_in])

    def input_mask(self, layer: NodeLayer, before: Tensor | None) -> Tensor:
        """Return the mask of a layer's groups that selects the inputs from chosen nodes of the layer before.

        Chosen nodes (R, K, m) bool -> (R, K, 1, fan_in or one more) bool. Images (None) and biases are selected.
        """
        if before is None:
            return torch.ones(1, 1, 1, layer.fan_in + layer.bias, dtype=torch.bool, device=self.net.device)
        # A channel's taps, or its positions on a flattened map, are adjacent.
        inputs = before.repeat_interleave(layer.fan_in // before.shape[2], dim=2)
        return F.pad(inputs, (0, int(layer.bias)), value=True).unsqueeze(2)

    def activations(self, params: dict[str, Tensor], images: Tensor, noise: Noise | None) -> Tensor:
        """Return |activation| of every node of one run, averaged over a map and summed over a batch: (N,).

        Activations are taken after the nonlinearity, before pooling and dropout. `params` (K, ...) by name, images
        (B, C, H, W); `noise` of this run and batch for dropout, None turns it off.
        """
        drawn = 0
        sums: list[list[Tensor]] = [[] for _ in self.layers]
        for k in range(self.learners):
            x, active, number = images, False, -1  # active: x is the activation of the layer `number`
            for name, layer in self.backbone._modules.items():
                assert layer is not None
                if active and type(layer) not in _ELEMENTWISE:
                    sums[number].append(_summed(x))
                    active = False
                if type(layer) in _APPLY:
                    weight, bias = aligned_alone(params[f"{name}.weight"][k]), params.get(f"{name}.bias")
                    x = _APPLY[type(layer)](layer, x, weight, None if bias is None else bias[k])
                    active, number = True, number + 1
                elif isinstance(layer, nn.Dropout):
                    if noise is not None:
                        site = DropoutSite(layer.p, tuple(x.shape[1:]), x.shape[1])
                        keep = noise.bytes(x.numel(), drawn)[0] >= site.threshold
                        x = x * keep.view_as(x) * site.scale
                        drawn += -(-x.numel() // 4) * 4
                else:
                    x = layer(x)
            if active:
                sums[number].append(_summed(x))
        return torch.cat([part for parts in sums for part in parts])


def _convolve(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)


def _multiply(layer: nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


# The layers with nodes. `known_layers` admits no subclasses.
_APPLY: dict[type[nn.Module], Callable[..., Tensor]] = {nn.Conv2d: _convolve, nn.Linear: _multiply}


def _summed(x: Tensor) -> Tensor:
    """(B, n) or (B, n, H, W) -> (n,)"""
    return x.abs().flatten(2).mean(2).sum(0) if x.ndim == 4 else x.abs().sum(0)


def join_layers(values: Sequence[Tensor]) -> Tensor:
    """Return values (R, K, n) of every layer as (R, N), the inverse of `Nodes.per_layer`."""
    return torch.cat([v.flatten(1) for v in values], dim=1)
