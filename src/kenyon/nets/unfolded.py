"""Convolutions of several learners over small maps, as products of matrices.

A block-diagonal convolution multiplies mostly zeros, and its kernel is put together anew in every step. Where maps
are small and layers wide, as in AlexNet on 64 x 64 images, it is cheaper to lay out every window as a row: one
batched product takes each learner's rows by its own weights, and leaves the learners' maps one after another, as the
next layer's windows want them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.nets.maps import Maps, eights
from kenyon.nets.products import wide_products
from kenyon.nets.windows import Geometry, packed, unpacked, windows

# Windows are written and read as rows five times a step, at ten bytes an element. A block-diagonal convolution does K
# times the products, and some thirty bytes go over memory for every element of its kernel. With K = 5 and hundreds of
# channels the products alone outweigh the rows, so the bound is a cautious one: maps of 13 x 13 are in, 27 x 27 out.
RATIO = 16


def pays(layer: nn.Conv2d, batch: int, sides: Sequence[int], learners: int) -> bool:
    """Whether windows of maps with these sides are few enough, against the rows of a block-diagonal kernel."""
    if learners == 1 or isinstance(layer.padding, str) or layer.dilation != (1, 1):
        return False
    down, right = Geometry.of(layer).places(*sides)
    return batch * down * right <= RATIO * learners * layer.out_channels


def unfolded(layer: nn.Conv2d, maps: Maps, weight: Tensor, place: Tensor | None = None) -> Maps:
    """Maps by weights (K, O, I, h, w), without bias; the result is parted. `place`: see `products`."""
    K, x, geometry = maps.learners, maps.part().data, Geometry.of(layer)
    rows = windows(x, geometry).unflatten(0, (K, -1))  # (K, B * H' * W', h * w * eights(I))
    out = _Product.apply(rows, weight, place)  # type: ignore[no-untyped-call]
    data = out.view(len(x), *geometry.places(*x.shape[2:]), -1).permute(0, 3, 1, 2)
    return Maps(data, K, layer.out_channels, parted=True)


class _Product(torch.autograd.Function):
    """Rows (K, N, h * w * inputs) by weights (K, O, I, h, w): (K, N, eights(O))."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, place: Tensor | None) -> Tensor:
        ctx.shape, ctx.place = weight.shape, place
        taps = weight.shape[3] * weight.shape[4]
        w = packed(weight, rows.shape[2] // taps, eights(weight.shape[1]), rows.dtype)
        ctx.save_for_backward(rows, w)
        return torch.bmm(rows, w.transpose(1, 2))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, w = ctx.saved_tensors
        return torch.bmm(dy, w), unpacked(wide_products(dy.transpose(1, 2), rows), ctx.shape, ctx.place), None
