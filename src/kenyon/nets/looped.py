"""Every learner and a few samples at a time, side by side on the cores of a CPU.

From the first dense layer of many weights on, whole batches go through shares of such layers instead (see `shares`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.apart import Part, apart
from kenyon.nets.dropout import kept
from kenyon.nets.dropping import dropped_plain
from kenyon.nets.layout import place_of
from kenyon.nets.shares import dense_in_shares, many_weights
from kenyon.nets.steps import Params, Sequential

LAID_OUT = torch.channels_last  # in which a CPU's convolutions are faster, 1.1 to 1.7 times for our backbones


class Looped(Sequential):
    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners, folds=True)
        whole = next((i for i, step in enumerate(self.steps) if many_weights(step.layer)), len(self.steps))
        self.in_parts, self.in_shares = self.steps[:whole], self.steps[whole:]

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        pieces = self.bytes_of(noise, len(images))
        if images.ndim == 4:
            images = images.contiguous(memory_format=LAID_OUT)

        def features(part: Part, mine: Params) -> Tensor:
            some = part.samples
            return self._learner(mine, part.learner, images[some], [p if p is None else p[some] for p in pieces])

        names = [f"{step.name}.{kind}" for step in self.in_parts for kind in ("weight", "bias")]
        x = apart(features, {name: params[name] for name in names if name in params}, len(images), self.learners)
        for step in self.in_shares:
            if isinstance(step.layer, nn.Linear):
                weight = f"{step.name}.weight"
                x = dense_in_shares(x, params[weight], params.get(f"{step.name}.bias"), place_of(params, weight))
            elif step.site is not None:
                x = x if (piece := pieces[step.number]) is None else dropped_plain(x, piece, step.site)
            elif not isinstance(step.layer, nn.Flatten):  # of vectors, nothing to do
                x = step.layer(x)
        return x

    def _learner(self, params: Params, k: int, x: Tensor, pieces: list[Tensor | None]) -> Tensor:
        """A few samples through what is computed in parts. Weights are converted here, so that their gradients add
        up in the type they have.
        """
        for step in self.in_parts:
            name, layer = step.name, step.layer
            keep = None
            if step.site is not None and (piece := pieces[step.number]) is not None:
                keep = kept(step.site, piece, k, x.dtype)
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                w, b = params[f"{name}.weight"].to(x.dtype), params.get(f"{name}.bias")
                b = b if b is None else b.to(x.dtype)
            if isinstance(layer, nn.Conv2d):
                x = F.conv2d(x, w, b, layer.stride, layer.padding, layer.dilation)
                if step.pool is not None:  # before ReLU and dropout: the numbers are the same, and fewer
                    x = step.pool(x)
                if keep is not None:
                    x = x.mul_(keep)
                if step.relu:
                    x = x.relu_()
            elif isinstance(layer, nn.Linear):
                x = F.linear(x, w, b)
            elif step.site is not None:
                x = x if keep is None else x * keep
            else:
                x = layer(x)
        return x
