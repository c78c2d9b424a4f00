"""A batch of K learners in parts that are computed side by side on the cores of a CPU, forwards and backwards.

A part is one learner and some of the samples. Parts are cut by the shape of the batch alone, never by how many cores
there are or what else is computed, and their gradients are added up in order: so every sum rounds alike everywhere.

Dense layers of many weights on a CPU: shares of their outputs, or of their inputs, side by side on its cores.

Cut by samples, as `apart` cuts the rest of a network, every part of a batch would have a gradient of all weights, to
be written and added up: for AlexNet that was most of a step. Shares are cut by the shape of the weights alone and
have one thread each, so that every sum rounds alike on any number of cores. Weights are converted to the type of the
samples, where they differ, in the share that uses them.

Every learner and a few samples at a time, side by side on the cores of a CPU.

From the first dense layer of many weights on, whole batches go through shares of such layers instead (see `shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.executor import LayerExecutor, Request
from kenyon.backends.layers import Params, kept, known_layers
from kenyon.backends.layout import place_of
from kenyon.backends.triton.dropout import dropped_plain
from kenyon.utils.threads import parallel_map

# Samples of a part: few enough that there are four parts for four cores, but not so few that convolutions are slow.
PARTS, FEWEST, MOST = 4, 10, 128


@dataclass(frozen=True)
class Part:
    learner: int
    samples: slice


# (part, its learner's parameters by name) -> features (samples, F)
Features = Callable[[Part, dict[str, Tensor]], Tensor]


def cut(batch: int, learners: int) -> list[Part]:
    size = min(MOST, max(FEWEST, -(-batch * learners // PARTS)))
    return [Part(k, slice(i, min(i + size, batch))) for k in range(learners) for i in range(0, batch, size)]


def apart(features: Features, params: dict[str, Tensor], batch: int, learners: int) -> Tensor:
    """Features (K, B, F), from parameters (K, ...) by name."""
    parts = cut(batch, learners)
    return _Apart.apply(features, parts, tuple(params), *params.values())  # type: ignore[no-untyped-call]


class _Apart(torch.autograd.Function):
    """Keeps the graph of every part, so that the parts of the backward pass go side by side too."""

    @staticmethod
    def forward(ctx: Any, features: Features, parts: list[Part], names: tuple[str, ...], *params: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad)

        def forwards(part: Part) -> tuple[Tensor, dict[str, Tensor]]:
            mine = {n: p[part.learner].detach().requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                return features(part, mine), mine

        found = parallel_map(forwards, parts)
        if needed:
            ctx.parts, ctx.found = parts, found
        return torch.cat([f.detach() for f, _ in found]).unflatten(0, (parts[-1].learner + 1, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def backwards(number: int) -> tuple[Tensor, ...]:
            part, (features, mine) = ctx.parts[number], ctx.found[number]
            return torch.autograd.grad(features, tuple(mine.values()), slope[part.learner, part.samples])

        gradients = parallel_map(backwards, range(len(ctx.parts)))
        totals: list[tuple[Tensor, ...]] = []  # of each learner
        for part, gradient in zip(ctx.parts, gradients, strict=True):
            if part.learner == len(totals):
                totals.append(gradient)
            else:
                for total, more in zip(totals[-1], gradient, strict=True):
                    total.add_(more)
        ctx.found = None
        return (None, None, None, *(_stacked(each) for each in zip(*totals, strict=True)))


def _stacked(each: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0)


MANY = 2**20  # weights of a layer, which a core's cache holds no longer
SHARES = 4  # at least, for four cores
MOST_WEIGHTS = 2**21  # weights of a share


def many_weights(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) and layer.weight.numel() >= MANY


def dense_in_shares(x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor | None = None) -> Tensor:
    """x (K, B, I) by weights (K, O, I) and biases (K, O): (K, B, O), computed in the type of x.

    `place`: memory for the gradient of the weights, which may be written there.
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[:2])
    return _DenseInShares.apply(x, weight, bias, place)  # type: ignore[no-untyped-call]


def cut_layer(length: int, other: int) -> list[slice]:
    """Shares of an axis of a matrix, whose other axis is so long."""
    size = max(1, min(-(-length // SHARES), MOST_WEIGHTS // other))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


class _DenseInShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, place: Tensor | None) -> Tensor:
        K, O, I = weight.shape  # noqa: E741
        ctx.place = place
        ctx.save_for_backward(x, weight)
        y, bias = x.new_empty(K, x.shape[1], O), bias.to(x.dtype)

        def some_outputs(k: int, share: slice) -> None:
            y[k, :, share] = F.linear(x[k], weight[k, share].to(x.dtype), bias[k, share])

        _all([partial(some_outputs, k, share) for k in range(K) for share in cut_layer(O, I)])
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        K, O, I = weight.shape  # noqa: E741
        dw = torch.empty_like(weight) if ctx.place is None else ctx.place
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None

        def of_weights(k: int, share: slice) -> None:
            slope = dy[k, :, share].T
            if dw.dtype is x.dtype:
                torch.mm(slope, x[k], out=dw[k, share])
            else:
                dw[k, share].copy_(slope @ x[k])

        def of_inputs(k: int, share: slice) -> None:
            assert dx is not None
            dx[k, :, share] = dy[k] @ weight[k, :, share].to(x.dtype)

        work = [partial(of_weights, k, share) for k in range(K) for share in cut_layer(O, I)]
        if dx is not None:
            work += [partial(of_inputs, k, share) for k in range(K) for share in cut_layer(I, O)]
        _all(work)
        return dx, dw, dy.sum(1, dtype=weight.dtype), None


def _all(work: Sequence[Callable[[], None]]) -> None:
    parallel_map(lambda one: one(), work)


LAID_OUT = torch.channels_last  # in which a CPU's convolutions are faster, 1.1 to 1.7 times for our backbones


class Looped(LayerExecutor):
    """One run: a learner and some samples at a time, side by side on the cores of a CPU."""

    @classmethod
    def for_backbone(cls, request: Request) -> Looped | None:
        if request.device.type != "cpu" or not known_layers(request.backbone, request.shape):
            return None
        assert isinstance(request.backbone, nn.Sequential)
        return cls(request.backbone, request.shape, request.learners)

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners)
        whole = next((i for i, step in enumerate(self.steps) if many_weights(step.layer)), len(self.steps))
        self.in_parts, self.in_shares = self.steps[:whole], self.steps[whole:]

    def forward(self, params: Params, images: Tensor, noise: Tensor | None, *, rows: Tensor | None = None) -> Tensor:
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
