"""Gradients of many small batches at once, each of one batch, summed as an importance needs them.

With one batch of 20 images after another, AlexNet reads 57 million weights and writes as many gradients for each.
Here many batches, groups of equal size, pass through the network as one. A group's gradient of a layer's weights is a
product over its samples, and those of one layer exist at a time. Those of a dense layer exist only in registers,
where they are squared, summed over groups and added to the layer's importance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padded_to_eight, padding_of, shapes_through
from kenyon.backends.triton.dense import available, wide_products
from kenyon.backends.triton.windows import Geometry, unpacked, windows
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# A tile: outputs, inputs, and samples per iteration.
TALL, WIDE, DEEP, WARPS = 64, 128, 32, 8


@dataclass(frozen=True)
class Sums:
    """Sums over groups g of scale_g * (gradient_g + push)^2, or of |...|, by a parameter's name."""

    into: Mapping[str, Tensor]  # (1, *shape) of every parameter, added to
    push: Mapping[str, Tensor] | None  # likewise: gradients of penalties on weights, the same for every group
    scales: Tensor  # (G,)
    square: bool  # else absolute values

    def add(self, name: str, gradients: Tensor) -> None:
        """Add the gradients (G, *shape) of a small parameter."""
        if self.push is not None:
            gradients = gradients + self.push[name]
        gradients = gradients.square() if self.square else gradients.abs()
        self.into[name].add_(torch.tensordot(self.scales, gradients, 1))

    def add_products(self, name: str, dy: Tensor, x: Tensor) -> None:
        """Add the gradients dy_g^T x_g of a dense layer's weights, from dy (G, B, O) and x (G, B, I)."""
        into = self.into[name]
        if not available(x) or not into.is_contiguous() or max(x.numel(), dy.numel()) >= 2**31:
            for g, scale in enumerate(self.scales.split(1)):  # one at a time: each may have millions of numbers
                one_group = Sums(self.into, self.push, scale, self.square)
                one_group.add(name, wide_products(dy[g : g + 1].transpose(1, 2), x[g : g + 1]))
            return
        dy, x = dy.contiguous(), x.contiguous()
        (G, B, I), O = x.shape, dy.shape[2]  # noqa: E741
        push = into if self.push is None else self.push[name]
        grid = (-(-I // WIDE), -(-O // TALL))
        with torch.cuda.device(x.get_device()):
            _add_products[grid](
                dy, x, into, push, self.scales, O, I, G, B, self.push is not None, self.square,
                TALL, WIDE, DEEP, num_warps=WARPS,
            )  # fmt: skip


class Groups(dict[str, Tensor]):
    """Named parameters of a row whose gradients of G groups of samples are summed in `sums`."""

    def __init__(self, params: Mapping[str, Tensor], sums: Sums) -> None:
        super().__init__(params)
        self.sums = sums

    def split(self, samples: Tensor) -> Tensor:
        """(G * B, ...) -> (G, B, ...)"""
        return samples.unflatten(0, (len(self.sums.scales), -1))


def groups_of(params: Mapping[str, Tensor]) -> Groups | None:
    return params if isinstance(params, Groups) else None


def window_numbers(backbone: nn.Sequential, shape: tuple[int, ...]) -> int | None:
    """Return the number of elements of all windows of a sample, in the convolution that has most; None if some layer
    is not supported here.
    """
    most, layers = 0, list(backbone)
    for layer, after in zip(layers, shapes_through(layers, shape), strict=False):
        match layer:
            case nn.Conv2d():
                if padding_of(layer) is None or layer.dilation != (1, 1) or after is None:
                    return None
                most = max(most, prod(after[1:]) * Geometry.of(layer).taps * padded_to_eight(layer.in_channels))
            case nn.Linear():
                pass
            case _ if any(True for _ in layer.parameters()):
                return None
    return most


def dense_of_groups(x: Tensor, groups: Groups, name: str) -> Tensor:
    """Apply a dense layer of one learner: x (1, G * B, I) -> (1, G * B, O)."""
    return _Dense.apply(x.squeeze(0), groups[f"{name}.weight"], groups, name).unsqueeze(0)  # type: ignore[no-untyped-call]


def convolution_of_groups(x: Tensor, kernel: Tensor, layer: nn.Conv2d, groups: Groups, name: str) -> Tensor:
    """Apply a convolution of one learner without its bias, whose gradient is summed too.

    `kernel`: made of its weights, possibly padded with channels.
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
        dy = groups.split(gradient)
        groups.sums.add_products(f"{name}.weight", dy, groups.split(x))
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
        pixels = groups.split(gradient.permute(0, 2, 3, 1)).flatten(1, 3)  # (G, B * H' * W', channels)
        rows = windows(x, Geometry.of(layer)).unflatten(0, pixels.shape[:2])
        products = wide_products(pixels.transpose(1, 2), rows)
        groups.sums.add(f"{name}.weight", unpacked(products, torch.Size((len(products), *ctx.shape[1:]))))
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
    dy: tensor, x: tensor, into: tensor, push: tensor, scales: tensor, O: tensor, I: tensor,  # noqa: E741
    G: constexpr, B: constexpr, PUSHED: constexpr, SQUARE: constexpr,
    TALL: constexpr, WIDE: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(1) * TALL + tl.arange(0, TALL)
    at, mask = o[:, None].to(tl.int64) * I + i[None, :], (o < O)[:, None] & (i < I)[None, :]
    total = tl.load(into + at, mask=mask, other=0.0)
    for g in range(G):
        product = tl.zeros([TALL, WIDE], tl.float32)
        if PUSHED:
            product += tl.load(push + at, mask=mask, other=0.0)
        for start in tl.static_range(0, B, DEEP):
            b = start + tl.arange(0, DEEP)
            row = g * B + b[:, None]
            d = tl.load(dy + row * O + o[None, :], mask=(b < B)[:, None] & (o < O)[None, :], other=0.0)
            v = tl.load(x + row * I + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
            product = tl.dot(tl.trans(d), v, product)
        total += (product * product if SQUARE else tl.abs(product)) * tl.load(scales + g)
    tl.store(into + at, total, mask=mask)
