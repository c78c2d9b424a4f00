"""The hidden nodes of a network: the channels of its convolutions and the units of its dense layers.

A node's group is all that comes into it, its incoming weights and its bias. What is known of the nodes of a run lies
along one axis, (R, N), layer by layer and within a layer learner by learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import DropoutSite, known_layers
from kenyon.backends.layout import aligned_alone
from kenyon.errors import ConfigError
from kenyon.models.ensemble import Net
from kenyon.random import Noise

# What may stand behind a layer and still be the activation of its nodes.
_ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU)


@dataclass(frozen=True)
class NodeLayer:
    name: str
    size: int  # nodes of one learner
    fan_in: int  # weights into one node
    bias: bool


class Nodes:
    """Where the groups of all nodes lie in the rows of a fleet."""

    def __init__(self, net: Net) -> None:
        if not known_layers(net.backbone, net.input_shape):
            raise ConfigError(
                "Nodes are known of backbones that are an nn.Sequential of convolutions, dense layers and layers "
                "without parameters between them. Build this backbone of those, or choose another method."
            )
        assert isinstance(net.backbone, nn.Sequential)
        self.net, self.backbone, self.learners = net, net.backbone, net.learners
        self.layers = tuple(
            NodeLayer(name, layer.weight.shape[0], layer.weight[0].numel(), layer.bias is not None)
            for name, layer in self.backbone._modules.items()
            if isinstance(layer, (nn.Conv2d, nn.Linear))
        )
        self.count = self.learners * sum(layer.size for layer in self.layers)

    def per_layer(self, values: Tensor) -> list[Tensor]:
        """Views of (R, N) as one (R, K, n) for every layer."""
        parts = values.split([self.learners * layer.size for layer in self.layers], dim=1)
        return [p.unflatten(1, (self.learners, layer.size)) for p, layer in zip(parts, self.layers, strict=True)]

    def groups(self, rows: Tensor, layer: NodeLayer) -> Tensor:
        """A copy of what comes into every node of a layer: (R, K, n, fan_in), or one more for the bias behind it."""
        weight = self.net.layout.view(rows, f"{layer.name}.weight").flatten(3)
        if not layer.bias:
            return weight.clone()
        return torch.cat([weight, self.net.layout.view(rows, f"{layer.name}.bias").unsqueeze(3)], dim=3)

    def put(self, rows: Tensor, layer: NodeLayer, groups: Tensor) -> None:
        """Write groups (R, K, n, fan_in or one more), or what spreads to them, to their places."""
        weight = self.net.layout.view(rows, f"{layer.name}.weight")
        groups = groups.expand(*weight.shape[:3], -1)
        weight.copy_(groups[..., : layer.fan_in].reshape(weight.shape))
        if layer.bias:
            self.net.layout.view(rows, f"{layer.name}.bias").copy_(groups[..., layer.fan_in])

    def heard(self, layer: NodeLayer, before: Tensor | None) -> Tensor:
        """Which parts of a layer's groups listen to the chosen ones (R, K, m) bool of the nodes before it:
        (R, K, 1, fan_in or one more) bool. Images (None) and biases always count.
        """
        if before is None:
            return torch.ones(1, 1, 1, layer.fan_in + layer.bias, dtype=torch.bool, device=self.net.device)
        # A channel's taps, or its positions on a flattened map, stand side by side.
        each = before.repeat_interleave(layer.fan_in // before.shape[2], dim=2)
        return F.pad(each, (0, int(layer.bias)), value=True).unsqueeze(2)

    def activations(self, params: dict[str, Tensor], images: Tensor, noise: Noise | None) -> Tensor:
        """|activation| of every node of one run, its mean over a map and its sum over a batch: (N,).

        Taken behind the nonlinearity and before pooling and dropout. `params` (K, ...) by name, images (B, C, H, W),
        `noise` of this run and batch for dropout on the way; None turns it off.
        """
        drawn = 0
        found: list[list[Tensor]] = [[] for _ in self.layers]
        for k in range(self.learners):
            x, active, number = images, False, -1  # active: x is the activation of the layer `number`
            for name, layer in self.backbone._modules.items():
                assert layer is not None
                if active and not isinstance(layer, _ELEMENTWISE):
                    found[number].append(_summed(x))
                    active = False
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    weight, bias = aligned_alone(params[f"{name}.weight"][k]), params.get(f"{name}.bias")
                    mine = None if bias is None else bias[k]
                    if isinstance(layer, nn.Conv2d):
                        x = F.conv2d(x, weight, mine, layer.stride, layer.padding, layer.dilation)
                    else:
                        x = F.linear(x, weight, mine)
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
                found[number].append(_summed(x))
        return torch.cat([part for parts in found for part in parts])


def _summed(x: Tensor) -> Tensor:
    """(B, n) or (B, n, H, W) -> (n,)"""
    return x.abs().flatten(2).mean(2).sum(0) if x.ndim == 4 else x.abs().sum(0)


def spread(values: Sequence[Tensor]) -> Tensor:
    """Values (R, K, n) of every layer as (R, N)."""
    return torch.cat([v.flatten(1) for v in values], dim=1)
