"""All learners at once, for a GPU.

A dense layer is one batched product; a convolution one block-diagonal convolution with its channels padded for the
tensor cores, or a batched product of windows where that is cheaper (see `unfolded`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets import fused
from kenyon.nets.deepened import Deepened
from kenyon.nets.dropout import DropoutSite, padded
from kenyon.nets.dropping import dropped
from kenyon.nets.groups import Groups, convolution_of_groups, dense_of_groups, numbers_of_windows
from kenyon.nets.layout import factors_of, place_of
from kenyon.nets.maps import Maps
from kenyon.nets.pooling import bias_relu_pool
from kenyon.nets.products import dense_layer, factored_layer
from kenyon.nets.single import convolution
from kenyon.nets.steps import Params, Sequential, Step, halves
from kenyon.nets.unfolded import pays, unfolded


class Stacked(Sequential):
    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)
        self.windows = numbers_of_windows(backbone, shape)  # of a sample, where `groups` knows all layers

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
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
