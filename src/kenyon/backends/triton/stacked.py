"""Convolutions of several learners over small maps, as products of matrices.

A block-diagonal convolution multiplies mostly zeros, and its kernel is put together anew in every step. Where maps
are small and layers wide, as in AlexNet on 64 x 64 images, it is cheaper to lay out every window as a row: one
batched product takes each learner's rows by its own weights, and leaves the learners' maps one after another, as the
next layer's windows want them.

A convolution of one learner, whose gradient goes from where a library leaves it to where it is wanted.

The general way makes a block-diagonal kernel of all learners' weights. With one learner that is a copy of a copy, and
its gradient is as many copies back: for layers as small as AlexNet's, each takes as long as the convolution.

All learners at once, for a GPU.

A dense layer is one batched product; a convolution one block-diagonal convolution with its channels padded for the
tensor cores, or a batched product of windows where that is cheaper (see `unfolded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.executor import LayerExecutor, Request
from kenyon.backends.layers import DropoutSite, Params, Step, halves, known_layers, padded
from kenyon.backends.layout import factors_of, place_of
from kenyon.backends.triton import fused
from kenyon.backends.triton.dense import dense_layer, factored_layer, wide_products
from kenyon.backends.triton.dropout import dropped
from kenyon.backends.triton.groups import Groups, convolution_of_groups, dense_of_groups, numbers_of_windows
from kenyon.backends.triton.maps import Maps, eights
from kenyon.backends.triton.pooling import bias_relu_pool
from kenyon.backends.triton.strided import Deepened
from kenyon.backends.triton.windows import Geometry, packed, unpacked, windows

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


def convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, place: Tensor | None = None) -> Tensor:
    """x (B, C, H, W) by weights (1, O, I, h, w) with I <= C, without bias: (B, padded(O), H', W'), in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    deepened = Deepened.of(layer)
    if deepened is not None:
        x = deepened.images(x)
    return _Convolution.apply(x, weight, layer, deepened, place)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, layer: nn.Conv2d, deepened: Deepened | None, place: Tensor | None
    ) -> Tensor:
        """x as the convolution is done."""
        O, I = weight.shape[1:3]  # noqa: E741
        sides = weight.shape[3:] if deepened is None else deepened.deep
        kernel = x.new_empty(padded(O), *sides, x.shape[1])
        if deepened is not None:
            kernel[O:].zero_()
            kernel[:O].unflatten(3, deepened.pixel).copy_(deepened.weights(weight[0]))
        else:
            if (padded(O), x.shape[1]) != (O, I):
                kernel.zero_()
            kernel[:O, ..., :I].copy_(weight[0].movedim(1, -1))
        kernel = kernel.permute(0, 3, 1, 2)  # in channels_last memory
        ctx.deepened, ctx.place, ctx.of = deepened, place, (weight.shape, weight.dtype)
        ctx.steps = (layer.stride, layer.padding, layer.dilation) if deepened is None else (1, 0, 1)
        ctx.save_for_backward(x, kernel)
        return F.conv2d(x, kernel, None, *ctx.steps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, kernel = ctx.saved_tensors
        (shape, dtype), deepened = ctx.of, ctx.deepened
        pairs = ([step, step] if isinstance(step, int) else step for step in ctx.steps)
        wanted = [ctx.needs_input_grad[0], True, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, kernel, None, *pairs, False, [0, 0], 1, wanted)
        dw = dw[: shape[1], : shape[2]] if deepened is None else deepened.flat(dw[: shape[1]])
        found = dw.new_empty(shape, dtype=dtype) if ctx.place is None else ctx.place
        found.copy_(dw)
        return dx, found, None, None, None


GROUPED = 16  # batches that go through a network at once, one run after another
WINDOWS = 2**28  # elements of all windows of a convolution then, half a gigabyte in bfloat16


class Stacked(LayerExecutor):
    """One run, all its learners at once, on a GPU."""

    @classmethod
    def for_backbone(cls, request: Request) -> Stacked | None:
        backbone, shape = request.backbone, request.shape
        if request.device.type == "cpu" or not known_layers(backbone, shape):
            return None
        assert isinstance(backbone, nn.Sequential)
        found = cls(backbone, shape, request.learners)
        if request.device.type == "cuda" and isinstance(backbone[0], nn.Conv2d):
            found.input_channels = -(-shape[0] // 8) * 8  # 16 bytes a pixel in bfloat16
        return found

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners)
        self.axes = len(shape) + 1  # of a batch
        self.windows = numbers_of_windows(backbone, shape)  # of a sample, where `groups` knows all layers

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        if self.learners > 1 or self.windows is None:
            return 1
        return max(1, min(GROUPED, min(room, WINDOWS // max(1, self.windows)) // batch))

    def factored_layers(self) -> list[str]:
        # Factors are kept in the backward pass of the layer's bias.
        layers = ((step.name, step.layer) for step in self.steps)
        return [name for name, layer in layers if isinstance(layer, nn.Linear) and layer.bias is not None]

    def forward(self, params: Params, images: Tensor, noise: Any, *, rows: Tensor | None = None) -> Tensor:
        """Activations are `Maps` behind convolutions and (K, B, F) behind dense layers."""
        K, pieces = self.learners, self.bytes_of(noise, len(images))
        x: Tensor | Maps = images
        shared = True  # all learners still see the same input, a tensor
        for step, behind in zip(self.steps, [*self.steps[1:], None], strict=True):
            name, layer = step.name, step.layer
            piece = pieces[step.number] if step.site is not None else None
            if isinstance(layer, nn.Conv2d):
                x = self._convolution(step, layer, params, x, piece, behind)
                shared = False
            elif isinstance(layer, nn.Flatten):
                if isinstance(x, Maps):
                    x = x.flat()
                elif shared:
                    x = x.flatten(1).expand(K, -1, -1)
                shared = False  # and behind a dense layer there is nothing left to flatten
            elif isinstance(x, Maps):
                x = _dropped(x, step.site, piece) if step.site is not None else replace(x, data=_plain(layer, x.data))
            elif isinstance(layer, nn.Linear):
                w, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
                if shared:
                    x, shared = x.expand(K, *x.shape), False
                bias = w.new_zeros(w.shape[:2]) if bias is None else bias
                if isinstance(params, Groups):
                    x = dense_of_groups(x, params, name)
                elif (factors := factors_of(params, f"{name}.weight")) is not None:
                    x = factored_layer(x, bias, factors)
                else:
                    x = dense_layer(x, w, bias, place_of(params, f"{name}.weight"))
            elif step.site is not None:
                x = x if piece is None else dropped(x, piece, step.site)
            else:
                x = layer(x)
        assert isinstance(x, Tensor)  # features are vectors
        return x.expand(K, *x.shape) if shared else x

    def _convolution(
        self,
        step: Step,
        layer: nn.Conv2d,
        params: Params,
        x: Tensor | Maps,
        piece: Tensor | None,
        behind: Step | None = None,
    ) -> Maps:
        """One convolution for all learners, with the bias, ReLU, pooling and dropout of its step; x is a tensor if
        all learners see the same. `piece`: the bytes of that dropout; `behind`: the step that will see the result.
        """
        K = self.learners
        weight, bias = params[f"{step.name}.weight"], params.get(f"{step.name}.bias")  # (K, O, I, h, w), (K, O)
        if bias is None:
            bias = weight.new_zeros(weight.shape[:2])
        place = place_of(params, f"{step.name}.weight")
        if isinstance(x, Maps) and pays(layer, x.batch, x.data.shape[2:], K):
            maps = unfolded(layer, x, weight, place)
        elif K == 1 and not isinstance(layer.padding, str) and not isinstance(params, Groups):
            data = convolution(layer, x.data if isinstance(x, Maps) else x, weight, place)
            maps = Maps(data, K, layer.out_channels)
        else:
            data = x.join().data if isinstance(x, Maps) else x
            build = _block_kernel if isinstance(x, Maps) else _shared_kernel
            kernel = build(weight.to(data.dtype), data.shape[1])
            if isinstance(params, Groups):
                data = convolution_of_groups(data, kernel, layer, params, step.name)
            elif (deepened := Deepened.of(layer)) is not None and not isinstance(x, Maps):
                kernel = deepened.weights(kernel).flatten(3).permute(0, 3, 1, 2)
                data = F.conv2d(deepened.images(data), kernel)
            else:
                data = F.conv2d(data, kernel, None, layer.stride, layer.padding, layer.dilation)
            maps = Maps(data, K, layer.out_channels)
        if not maps.parted and step.relu and _halved(step, maps.data) and fused.available(maps.data):
            threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
            wide = _padded_bias(bias, maps.data)
            return replace(maps, data=fused.bias_relu_pool_dropout(maps.data, wide, piece, threshold, scale))
        size, stride = (1, 1) if step.pool is None else (step.pool.kernel_size, step.pool.stride)
        assert isinstance(size, int) and isinstance(stride, int)
        sides = [(side - size) // stride + 1 for side in maps.data.shape[2:]]
        then = None if behind is None else behind.layer
        part = isinstance(then, nn.Conv2d) and pays(then, maps.batch, sides, K)
        if step.pool is None and not (part or maps.parted) and step.relu and fused.available(maps.data):
            maps = replace(maps, data=fused.bias_relu(maps.data, _padded_bias(bias, maps.data)))
        else:
            maps = bias_relu_pool(maps, bias, relu=step.relu, size=size, stride=stride, part=part)
        return maps if step.site is None else _dropped(maps, step.site, piece)


def behind_convolution(step: Step, x: Tensor, bias: Tensor, piece: Tensor | None) -> Tensor:
    """The bias, ReLU, pooling and dropout of a step, from what its convolution left (B, C, H, W), which is lost.

    `piece`: the random bytes of the dropout (B, H', W', C), if there is one.
    """
    kernels = step.relu and fused.available(x)
    threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
    if kernels and _halved(step, x):
        return fused.bias_relu_pool_dropout(x, bias, piece, threshold, scale)
    if step.relu:
        x = fused.bias_relu(x, bias) if kernels else fused.bias_relu_plain(x, bias)
    else:
        x = x + bias.to(x.dtype).view(1, -1, 1, 1)
    if step.pool is not None:
        x = step.pool(x)
    return x if piece is None else x * (piece >= threshold).movedim(-1, 1) * scale


def _halved(step: Step, x: Tensor) -> bool:
    return halves(step.pool) and x.shape[2] % 2 == x.shape[3] % 2 == 0


def _plain(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer that treats every channel alike."""
    if isinstance(layer, nn.AdaptiveAvgPool2d) and x.shape[2:] == (1, 1) and isinstance(layer.output_size, int):
        return x.expand(-1, -1, layer.output_size, layer.output_size)  # means of one number
    out: Tensor = layer(x)
    return out


def _dropped(maps: Maps, site: DropoutSite, piece: Tensor | None) -> Maps:
    if piece is None:
        return maps
    maps = maps.join()
    return replace(maps, data=maps.data * (piece >= site.threshold).movedim(-1, 1) * site.scale)


def _padded_bias(bias: Tensor, x: Tensor) -> Tensor:
    """(K, O) for all channels of x."""
    flat, channels = bias.reshape(-1), x.shape[1]
    return flat if len(flat) == channels else F.pad(flat, (0, channels - len(flat)))


def _shared_kernel(w: Tensor, inputs: int) -> Tensor:
    """(K, O, I, h, w) over a common input -> (padded(K*O), inputs, h, w)."""
    K, O, I = w.shape[:3]  # noqa: E741
    kernel = F.pad(w.flatten(0, 1), (0, 0, 0, 0, 0, inputs - I, 0, padded(K * O) - K * O))
    return kernel.contiguous(memory_format=torch.channels_last)


def _block_kernel(w: Tensor, inputs: int) -> Tensor:
    """(K, O, I, h, w), each learner over its own channels -> block-diagonal (padded(K*O), inputs, h, w)."""
    K, O, I = w.shape[:3]  # noqa: E741
    eye = torch.eye(K, dtype=w.dtype, device=w.device).view(K, 1, K, 1, 1, 1)
    blocks = (w.unsqueeze(2) * eye).flatten(0, 1).flatten(1, 2)  # (K*O, K*I, h, w)
    kernel = F.pad(blocks, (0, 0, 0, 0, 0, inputs - K * I, 0, padded(K * O) - K * O))
    return kernel.contiguous(memory_format=torch.channels_last)
