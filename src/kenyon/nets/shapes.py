"""What shapes a backbone of known layers gives, without computing its numbers: a large network takes long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

Shape = tuple[int, ...]  # of one sample


def shapes_through(layers: Iterable[nn.Module], shape: Shape) -> Iterator[Shape | None]:
    """The shape of a sample behind each of the layers, which are those of `known_layers`; None, and no more, where a
    layer does not take what it is given.
    """
    for layer in layers:
        try:
            found = _behind(layer, shape)
        except (RuntimeError, ValueError, IndexError):  # as pooling has it, of maps that are too small
            found = None
        yield found
        if found is None:
            return
        shape = found


def _behind(layer: nn.Module, shape: Shape) -> Shape | None:
    if isinstance(layer, nn.Linear):
        return (*shape[:-1], layer.out_features) if shape[-1] == layer.in_features else None
    if isinstance(layer, nn.Conv2d):
        return _convolved(layer, shape)
    if isinstance(layer, nn.Dropout):
        return shape
    with torch.no_grad():
        return tuple(layer(torch.zeros(1, *shape)).shape[1:])  # without weights: that is quick


def _convolved(layer: nn.Conv2d, shape: Shape) -> Shape | None:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        return None
    if layer.padding == "same":
        return (layer.out_channels, *shape[1:])
    paddings = (0, 0) if isinstance(layer.padding, str) else layer.padding
    sides = [
        (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for side, padding, dilation, kernel, stride in zip(
            shape[1:], paddings, layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    ]
    return (layer.out_channels, *sides) if min(sides) > 0 else None
