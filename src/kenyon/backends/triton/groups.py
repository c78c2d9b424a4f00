"""Gradients of many small batches of one network at once, each batch's own, added up as an importance adds them.

A batch of 20 images has AlexNet read 57 million weights and write as many gradients, of which squares are added up;
and so has the next. Here many batches, groups of equal size, go through the network as one. What a group says of a
layer's weights is a product of its own samples, and no more than one layer's of these exist at a time: those of a
dense layer only in registers, where they are squared, summed over groups and added to the layer's importance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import shapes_through
from kenyon.backends.triton.dense import available, wide_products
from kenyon.backends.triton.maps import eights
from kenyon.backends.triton.windows import Geometry, unpacked, windows
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# Of a tile: outputs, inputs, and samples at a time.
TALL, WIDE, DEEP, WARPS = 64, 128, 32, 8


@dataclass(frozen=True)
class Sums:
    """Where the sums over groups g of share_g * (gradient_g + push)^2, or of |...|, are added, by a layer's name."""

    into: Mapping[str, Tensor]  # (1, *shape) of every part, written to
    push: Mapping[str, Tensor] | None  # likewise, of penalties on weights: the same for every group
    shares: Tensor  # (G,)
    square: bool  # else absolute values

    def add(self, name: str, found: Tensor) -> None:
        """The gradients (G, *shape) of a part that has few numbers."""
        if self.push is not None:
            found = found + self.push[name]
        found = found.square() if self.square else found.abs()
        self.into[name].add_(torch.tensordot(self.shares, found, 1))

    def add_products(self, name: str, dy: Tensor, x: Tensor) -> None:
        """The gradients dy_g^T x_g of a dense layer's weights, of dy (G, B, O) and x (G, B, I)."""
        into = self.into[name]
        if not available(x) or not into.is_contiguous() or max(x.numel(), dy.numel()) >= 2**31:
            for g, share in enumerate(self.shares.split(1)):  # not all at once: there may be millions
                of_one = Sums(self.into, self.push, share, self.square)
                of_one.add(name, wide_products(dy[g : g + 1].transpose(1, 2), x[g : g + 1]))
            return
        dy, x = dy.contiguous(), x.contiguous()
        (G, B, I), O = x.shape, dy.shape[2]  # noqa: E741
        push = into if self.push is None else self.push[name]
        grid = (-(-I // WIDE), -(-O // TALL))
        with torch.cuda.device(x.get_device()):
            _add_products[grid](
                dy, x, into, push, self.shares, O, I, G, B, self.push is not None, self.square,
                TALL, WIDE, DEEP, num_warps=WARPS,
            )  # fmt: skip


class Groups(dict[str, Tensor]):
    """The named parts of a row, whose gradients are wanted of every one of G groups of samples, as `sums`."""

    def __init__(self, parts: Mapping[str, Tensor], sums: Sums) -> None:
        super().__init__(parts)
        self.sums = sums

    def parted(self, samples: Tensor) -> Tensor:
        """(G * B, ...) -> (G, B, ...)"""
        return samples.unflatten(0, (len(self.sums.shares), -1))


def numbers_of_windows(backbone: nn.Sequential, shape: tuple[int, ...]) -> int | None:
    """How many numbers all windows of a sample have, in the convolution that has most; None where gradients of some
    layer are not found here.
    """
    most, layers = 0, list(backbone)
    for layer, behind in zip(layers, shapes_through(layers, shape), strict=False):
        if isinstance(layer, nn.Conv2d):
            if isinstance(layer.padding, str) or layer.dilation != (1, 1) or behind is None:
                return None
            most = max(most, prod(behind[1:]) * Geometry.of(layer).taps * eights(layer.in_channels))
        elif not isinstance(layer, nn.Linear) and any(True for _ in layer.parameters()):
            return None
    return most


def dense_of_groups(x: Tensor, groups: Groups, name: str) -> Tensor:
    """A dense layer of one learner: x (1, G * B, I) -> (1, G * B, O)."""
    return _Dense.apply(x.squeeze(0), groups[f"{name}.weight"], groups, name).unsqueeze(0)  # type: ignore[no-untyped-call]


def convolution_of_groups(x: Tensor, kernel: Tensor, layer: nn.Conv2d, groups: Groups, name: str) -> Tensor:
    """A convolution of one learner without its bias, whose gradient it finds too. `kernel` is made of its weights,
    perhaps with more channels.
    """
    return _Convolution.apply(x, groups[f"{name}.weight"], kernel.detach(), layer, groups, name)  # type: ignore[no-untyped-call]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: Groups, name: str) -> Tensor:
        ctx.groups, ctx.name = groups, name
        w, bias = weight[0].to(x.dtype), groups.get(f"{name}.bias")
        ctx.save_for_backward(x, w)
        return F.linear(x, w, None if bias is None else bias[0].to(x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (x, w), groups, name = ctx.saved_tensors, ctx.groups, ctx.name
        dy = groups.parted(gradient)
        groups.sums.add_products(f"{name}.weight", dy, groups.parted(x))
        if f"{name}.bias" in groups:
            groups.sums.add(f"{name}.bias", _summed(dy))
        return gradient @ w, None, None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, kernel: Tensor, layer: nn.Conv2d, groups: Groups, name: str
    ) -> Tensor:
        ctx.layer, ctx.groups, ctx.name, ctx.shape = layer, groups, name, weight.shape
        ctx.save_for_backward(x, kernel)
        return F.conv2d(x, kernel, None, layer.stride, layer.padding)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        (x, kernel), layer, groups, name = ctx.saved_tensors, ctx.layer, ctx.groups, ctx.name
        pixels = groups.parted(gradient.permute(0, 2, 3, 1)).flatten(1, 3)  # (G, B * H' * W', channels)
        rows = windows(x, Geometry.of(layer)).unflatten(0, pixels.shape[:2])
        found = wide_products(pixels.transpose(1, 2), rows)
        groups.sums.add(f"{name}.weight", unpacked(found, torch.Size((len(found), *ctx.shape[1:]))))
        if f"{name}.bias" in groups:
            groups.sums.add(f"{name}.bias", _summed(pixels)[:, : layer.out_channels])
        dx = None
        if ctx.needs_input_grad[0]:
            shape = (layer.stride, layer.padding, layer.dilation, False, [0, 0], 1)
            dx = torch.ops.aten.convolution_backward(gradient, x, kernel, None, *shape, [True, False, False])[0]
        return dx, None, None, None, None, None


def _summed(dy: Tensor) -> Tensor:
    """(G, B, O) -> (G, O)"""
    return dy.sum(1, dtype=torch.promote_types(dy.dtype, torch.float32))


@jit
def _add_products(
    dy: tensor, x: tensor, into: tensor, push: tensor, shares: tensor, O: tensor, I: tensor,  # noqa: E741
    G: constexpr, B: constexpr, PUSHED: constexpr, SQUARE: constexpr,
    TALL: constexpr, WIDE: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(1) * TALL + tl.arange(0, TALL)
    at, there = o[:, None].to(tl.int64) * I + i[None, :], (o < O)[:, None] & (i < I)[None, :]
    total = tl.load(into + at, mask=there, other=0.0)
    for g in range(G):
        found = tl.zeros([TALL, WIDE], tl.float32)
        if PUSHED:
            found += tl.load(push + at, mask=there, other=0.0)
        for start in tl.static_range(0, B, DEEP):
            b = start + tl.arange(0, DEEP)
            row = g * B + b[:, None]
            d = tl.load(dy + row * O + o[None, :], mask=(b < B)[:, None] & (o < O)[None, :], other=0.0)
            v = tl.load(x + row * I + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
            found = tl.dot(tl.trans(d), v, found)
        total += (found * found if SQUARE else tl.abs(found)) * tl.load(shares + g)
    tl.store(into + at, total, mask=there)
