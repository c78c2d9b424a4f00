"""Every learner and a few samples at a time, side by side on the cores of a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.apart import Part, apart
from kenyon.nets.dropout import kept
from kenyon.nets.steps import Params, Sequential

LAID_OUT = torch.channels_last  # in which a CPU's convolutions are faster, 1.1 to 1.7 times for our backbones


class Looped(Sequential):
    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        pieces = self.bytes_of(noise, len(images))
        if images.ndim == 4:
            images = images.contiguous(memory_format=LAID_OUT)

        def features(part: Part, mine: Params) -> Tensor:
            some = part.samples
            return self._learner(mine, part.learner, images[some], [p if p is None else p[some] for p in pieces])

        return apart(features, params, len(images), self.learners)

    def _learner(self, params: Params, k: int, x: Tensor, pieces: list[Tensor | None]) -> Tensor:
        for step in self.steps:
            name, layer = step.name, step.layer
            keep = None
            if step.site is not None and (piece := pieces[step.number]) is not None:
                keep = kept(step.site, piece, k, x.dtype)
            if isinstance(layer, nn.Conv2d):
                w, b = params[f"{name}.weight"], params.get(f"{name}.bias")
                x = F.conv2d(x, w, b, layer.stride, layer.padding, layer.dilation)
                if step.pool is not None:  # before ReLU and dropout: the numbers are the same, and fewer
                    x = step.pool(x)
                if keep is not None:
                    x = x.mul_(keep)
                if step.relu:
                    x = x.relu_()
            elif isinstance(layer, nn.Linear):
                x = F.linear(x, params[f"{name}.weight"], params.get(f"{name}.bias"))
            elif step.site is not None:
                x = x if keep is None else x * keep
            else:
                x = layer(x)
        return x
