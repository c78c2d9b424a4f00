"""Convolutions of several learners over small maps, as products of matrices.

A block-diagonal convolution multiplies mostly zeros, and its kernel is put together anew in every step. Where maps
are small and layers wide, as in AlexNet on 64 x 64 images, it is cheaper to lay out every window as a row: the
weights are then used as they lie, and their gradients come as they are kept.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.dropout import padded
from kenyon.nets.products import dense_layer

# A window's row costs about an eighth of what a row of the block-diagonal kernel does (written and read once, against
# being multiplied, padded, turned and taken apart again).
RATIO = 8


def pays(layer: nn.Conv2d, x: Tensor, learners: int) -> bool:
    """Whether windows are fewer than the rows of a block-diagonal kernel, by what each costs."""
    if learners == 1 or isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return False
    windows = len(x) * _places(x.shape[2], layer, 0) * _places(x.shape[3], layer, 1)
    return windows <= RATIO * learners * layer.out_channels


def unfolded(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (B, padded(K*I), H, W) by weights (K, O, I, h, w) and biases (K, O): (B, padded(K*O), H', W').

    Both in channels_last memory.
    """
    K, O, I = weight.shape[:3]  # noqa: E741
    assert not isinstance(layer.padding, str)
    down, right = layer.padding
    each = x[:, : K * I].permute(0, 2, 3, 1).unflatten(-1, (K, I))  # (B, H, W, K, I)
    each = F.pad(each, (0, 0, 0, 0, right, right, down, down))
    windows = each.unfold(1, weight.shape[3], layer.stride[0]).unfold(2, weight.shape[4], layer.stride[1])
    B, height, width = windows.shape[:3]  # (B, H', W', K, I, h, w)
    rows = windows.permute(3, 0, 1, 2, 4, 5, 6).reshape(K, B * height * width, -1)
    out = dense_layer(rows, weight.flatten(2), bias)  # (K, B * H' * W', O)
    maps = out.view(K, B, height, width, O).permute(1, 2, 3, 0, 4).flatten(3)
    return F.pad(maps, (0, padded(K * O) - K * O)).permute(0, 3, 1, 2)


def _places(side: int, layer: nn.Conv2d, axis: int) -> int:
    assert not isinstance(layer.padding, str)
    return (side + 2 * layer.padding[axis] - layer.kernel_size[axis]) // layer.stride[axis] + 1
