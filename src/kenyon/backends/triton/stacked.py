"""All learners of a run at once, for a GPU.

A dense layer is one batched product. A convolution is one of three things:

  - A block-diagonal convolution of all learners, with channels padded for the tensor cores.
  - A batched product of windows. A block-diagonal convolution multiplies mostly zeros, and its kernel is assembled in
    every step; for small maps and wide layers, as in AlexNet on 64 x 64 images, it is cheaper to write every window
    as a row and to multiply each learner's rows by its weights.
  - With one learner, a plain convolution whose gradient is copied once to its memory. Assembling a kernel of one
    block and splitting its gradient would take as long as the small convolutions of AlexNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.executor import LayerExecutor, Request
from kenyon.backends.layers import (
    ConvolutionStep,
    DropoutSite,
    DropoutStep,
    FlattenStep,
    LinearStep,
    Params,
    Step,
    halves,
    known_layers,
    padded,
    padded_to_eight,
    padding_of,
)
from kenyon.backends.layout import factors_of, gradient_memory
from kenyon.backends.triton import fused
from kenyon.backends.triton.dense import dense_layer, factored_layer, wide_products
from kenyon.backends.triton.dropout import dropped
from kenyon.backends.triton.groups import convolution_of_groups, dense_of_groups, groups_of, window_numbers
from kenyon.backends.triton.pooling import Maps, bias_relu_pool
from kenyon.backends.triton.strided import SpaceToDepth
from kenyon.backends.triton.windows import Geometry, packed, unpacked, windows

# Windows are written and read as rows five times per step, at ten bytes an element. A block-diagonal convolution
# computes K times the products and moves some thirty bytes for every element of its kernel. With K = 5 and hundreds
# of channels the products alone outweigh the rows, so the bound is cautious: maps of 13 x 13 are below it, 27 x 27
# above.
RATIO = 16


def pays(layer: nn.Conv2d, batch: int, sides: Sequence[int], learners: int) -> bool:
    """Return True if a product of windows is cheaper than a block-diagonal kernel, for maps with these sides."""
    if learners == 1 or padding_of(layer) is None or layer.dilation != (1, 1):
        return False
    down, right = Geometry.of(layer).places(*sides)
    return batch * down * right <= RATIO * learners * layer.out_channels


def unfolded(layer: nn.Conv2d, maps: Maps, weight: Tensor, memory: Tensor | None = None) -> Maps:
    """Convolve maps with weights (K, O, I, h, w), without bias, as a product of windows; the result is split.

    `memory`: for the gradient of the weights, which may be written there.
    """
    K, x, geometry = maps.learners, maps.split().data, Geometry.of(layer)
    rows = windows(x, geometry).unflatten(0, (K, -1))  # (K, B * H' * W', h * w * padded_to_eight(I))
    out = _Product.apply(rows, weight, memory)  # type: ignore[no-untyped-call]
    data = out.view(len(x), *geometry.places(*x.shape[2:]), -1).permute(0, 3, 1, 2)
    return Maps(data, K, layer.out_channels, is_split=True)


class _Product(torch.autograd.Function):
    """Rows (K, N, h * w * inputs) by weights (K, O, I, h, w): (K, N, padded_to_eight(O))."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, memory: Tensor | None) -> Tensor:
        ctx.shape, ctx.memory = weight.shape, memory
        taps = weight.shape[3] * weight.shape[4]
        w = packed(weight, rows.shape[2] // taps, padded_to_eight(weight.shape[1]), rows.dtype)
        ctx.save_for_backward(rows, w)
        return torch.bmm(rows, w.transpose(1, 2))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, w = ctx.saved_tensors
        return torch.bmm(dy, w), unpacked(wide_products(dy.transpose(1, 2), rows), ctx.shape, ctx.memory), None


def convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, memory: Tensor | None = None) -> Tensor:
    """Convolve x (B, C, H, W) with weights (1, O, I, h, w), I <= C, without bias: (B, padded(O), H', W'), in the type
    of x.

    `memory`: for the gradient of the weights, which may be written there.
    """
    form = SpaceToDepth.of(layer)
    if form is not None:
        x = form.images(x)
    return _Convolution.apply(x, weight, layer, form, memory)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, layer: nn.Conv2d, form: SpaceToDepth | None, memory: Tensor | None
    ) -> Tensor:
        """`x`: already in the given form."""
        O, I = weight.shape[1:3]  # noqa: E741
        sides = weight.shape[3:] if form is None else form.deep
        kernel = x.new_empty(padded(O), *sides, x.shape[1])
        if form is not None:
            kernel[O:].zero_()
            kernel[:O].unflatten(3, form.pixel).copy_(form.weights(weight[0]))
        else:
            if (padded(O), x.shape[1]) != (O, I):
                kernel.zero_()
            kernel[:O, ..., :I].copy_(weight[0].movedim(1, -1))
        kernel = kernel.permute(0, 3, 1, 2)  # in channels_last memory
        ctx.form, ctx.memory, ctx.weight = form, memory, (weight.shape, weight.dtype)
        ctx.settings = (layer.stride, layer.padding, layer.dilation) if form is None else ((1, 1), (0, 0), (1, 1))
        ctx.save_for_backward(x, kernel)
        return F.conv2d(x, kernel, None, *ctx.settings)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        x, kernel = ctx.saved_tensors
        (shape, dtype), form = ctx.weight, ctx.form
        mask = [ctx.needs_input_grad[0], True, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, kernel, None, *ctx.settings, False, [0, 0], 1, mask)
        dw = dw[: shape[1], : shape[2]] if form is None else form.flat(dw[: shape[1]])
        gradient = dw.new_empty(shape, dtype=dtype) if ctx.memory is None else ctx.memory
        gradient.copy_(dw)
        return dx, gradient, None, None, None


GROUPED = 16  # batches that pass through a network at once, one run after another
WINDOWS = 2**28  # elements of all windows of a convolution then, half a gigabyte in bfloat16


class Stacked(LayerExecutor):
    """One run, all its learners at once, on a GPU."""

    @classmethod
    def for_backbone(cls, request: Request) -> Stacked | None:
        backbone, shape = request.backbone, request.shape
        if request.device.type == "cpu" or not known_layers(backbone, shape):
            return None
        assert isinstance(backbone, nn.Sequential)
        executor = cls(backbone, shape, request.learners)
        if request.device.type == "cuda" and type(backbone[0]) is nn.Conv2d:
            executor.input_channels = padded_to_eight(shape[0])
        return executor

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners)
        self.axes = len(shape) + 1  # of a batch
        self.windows = window_numbers(backbone, shape)  # of a sample, if `groups` supports all layers
        flat = (number for number, step in enumerate(self.steps) if type(step) in (FlattenStep, LinearStep))
        self.flat = next(flat, len(self.steps))  # number of steps before samples become vectors

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        if self.learners > 1 or self.windows is None:
            return 1
        return max(1, min(GROUPED, min(room, WINDOWS // max(1, self.windows)) // batch))

    def factored_layers(self) -> list[str]:
        # Factors are stored in the backward pass of the layer's bias.
        layers = ((step.name, step.layer) for step in self.steps if type(step) is LinearStep)
        return [name for name, layer in layers if layer.bias is not None]

    def forward(self, params: Params, images: Tensor, noise: Any, *, rows: Tensor | None = None) -> Tensor:
        site_bytes = self.bytes_of(noise, len(images))
        maps = Maps(images, self.learners, images.shape[1], shared=True)
        for step, following in zip(self.steps[: self.flat], [*self.steps[1:], None], strict=False):
            drawn = site_bytes[step.number] if step.site is not None else None
            match step:
                case ConvolutionStep():
                    maps = self._convolution(step, params, maps, drawn, following)
                case DropoutStep():
                    maps = _drop(maps, step.site, drawn)
                case _:
                    maps = replace(maps, data=_channelwise(step.layer, maps.data))
        x = maps.flat()  # (K, B, F)
        for step in self.steps[self.flat :]:
            match step:
                case LinearStep():
                    x = _linear(step, params, x)
                case DropoutStep():
                    drawn = site_bytes[step.number]
                    x = x if drawn is None else dropped(x, drawn, step.site)
                case FlattenStep():
                    pass  # samples are vectors already
                case _:
                    x = step.layer(x)
        return x

    def _convolution(
        self, step: ConvolutionStep, params: Params, maps: Maps, drawn: Tensor | None, following: Step | None = None
    ) -> Maps:
        """Compute a convolution for all learners, with the bias, ReLU, pooling and dropout of its step.

        `drawn`: the random bytes of that dropout; `following`: the step that takes the result.
        """
        K, layer = self.learners, step.layer
        weight, bias = params[f"{step.name}.weight"], params.get(f"{step.name}.bias")  # (K, O, I, h, w), (K, O)
        if bias is None:
            bias = weight.new_zeros(weight.shape[:2])
        memory, groups = gradient_memory(params, f"{step.name}.weight"), groups_of(params)
        if not maps.shared and pays(layer, maps.batch, maps.data.shape[2:], K):
            maps = unfolded(layer, maps, weight, memory)
        elif K == 1 and padding_of(layer) is not None and groups is None:
            maps = Maps(convolution(layer, maps.data, weight, memory), K, layer.out_channels)
        else:
            x = maps.join().data
            kernel = (_shared_kernel if maps.shared else _block_kernel)(weight.to(x.dtype), x.shape[1])
            if groups is not None:
                data = convolution_of_groups(x, kernel, layer, groups, step.name)
            elif maps.shared and (form := SpaceToDepth.of(layer)) is not None:
                kernel = form.weights(kernel).flatten(3).permute(0, 3, 1, 2)
                data = F.conv2d(form.images(x), kernel)
            else:
                data = F.conv2d(x, kernel, None, layer.stride, layer.padding, layer.dilation)
            maps = Maps(data, K, layer.out_channels)
        if not maps.is_split and step.relu and _halves(step, maps.data) and fused.available(maps.data):
            threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
            wide = _padded_bias(bias, maps.data)
            return replace(maps, data=fused.bias_relu_pool_dropout(maps.data, wide, drawn, threshold, scale))
        size, stride = (1, 1) if step.pool is None else (step.pool.kernel_size, step.pool.stride)
        assert isinstance(size, int) and isinstance(stride, int)
        sides = [(side - size) // stride + 1 for side in maps.data.shape[2:]]
        match following:
            case ConvolutionStep():
                split = pays(following.layer, maps.batch, sides, K)
            case _:
                split = False
        if step.pool is None and not (split or maps.is_split) and step.relu and fused.available(maps.data):
            maps = replace(maps, data=fused.bias_relu(maps.data, _padded_bias(bias, maps.data)))
        else:
            maps = bias_relu_pool(maps, bias, relu=step.relu, size=size, stride=stride, split=split)
        return maps if step.site is None else _drop(maps, step.site, drawn)


def _linear(step: LinearStep, params: Params, x: Tensor) -> Tensor:
    """Apply a dense layer of all learners: x (K, B, I) -> (K, B, O)."""
    name = f"{step.name}.weight"
    w, bias = params[name], params.get(f"{step.name}.bias")
    bias = w.new_zeros(w.shape[:2]) if bias is None else bias
    if (groups := groups_of(params)) is not None:
        return dense_of_groups(x, groups, step.name)
    if (factors := factors_of(params, name)) is not None:
        return factored_layer(x, bias, factors)
    return dense_layer(x, w, bias, gradient_memory(params, name))


def after_convolution(step: ConvolutionStep, x: Tensor, bias: Tensor, drawn: Tensor | None) -> Tensor:
    """Apply the bias, ReLU, pooling and dropout of a step to the output of its convolution (B, C, H, W), which is
    overwritten.

    `drawn`: the random bytes of the dropout (B, H', W', C), if there is one.
    """
    kernels = step.relu and fused.available(x)
    threshold, scale = (step.site.threshold, step.site.scale) if step.site is not None else (0, 1.0)
    if kernels and _halves(step, x):
        return fused.bias_relu_pool_dropout(x, bias, drawn, threshold, scale)
    if step.relu:
        x = fused.bias_relu(x, bias) if kernels else fused.bias_relu_plain(x, bias)
    else:
        x = x + bias.to(x.dtype).view(1, -1, 1, 1)
    if step.pool is not None:
        x = step.pool(x)
    return x if drawn is None else x * (drawn >= threshold).movedim(-1, 1) * scale


def _halves(step: ConvolutionStep, x: Tensor) -> bool:
    return halves(step.pool) and x.shape[2] % 2 == x.shape[3] % 2 == 0


def _channelwise(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer that treats every channel alike."""
    if type(layer) is nn.AdaptiveAvgPool2d and x.shape[2:] == (1, 1) and type(layer.output_size) is int:
        return x.expand(-1, -1, layer.output_size, layer.output_size)  # means of one number
    out: Tensor = layer(x)
    return out


def _drop(maps: Maps, site: DropoutSite, drawn: Tensor | None) -> Maps:
    if drawn is None:
        return maps
    maps = maps.join()
    return replace(maps, data=maps.data * (drawn >= site.threshold).movedim(-1, 1) * site.scale)


def _padded_bias(bias: Tensor, x: Tensor) -> Tensor:
    """Return biases (K, O) as one vector for all channels of x."""
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
