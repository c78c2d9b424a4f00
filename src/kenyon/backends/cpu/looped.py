"""One run on the cores of a CPU: chunks of a learner and some samples, and shards of large dense layers.

Chunks are computed in parallel, forward and backward. They are chosen by the shape of the batch alone, independent of
the number of cores and of other work, and their gradients are summed in order, so that every sum rounds alike on all
machines.

With chunks, every chunk of a batch has a gradient of all weights to write and to sum; for AlexNet that was most of a
step. From the first dense layer with many weights, whole batches therefore pass through shards of the layers: slices
of their outputs, or of their inputs, with one thread each. Shards are chosen by the shape of the weights alone. Each
shard converts its weights to the type of the samples where they differ.
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
from kenyon.backends.layers import (
    ConvolutionStep,
    DropoutStep,
    FlattenStep,
    LinearStep,
    Params,
    Step,
    dropout_factor,
    known_layers,
)
from kenyon.backends.layout import gradient_memory
from kenyon.backends.triton.dropout import dropped_plain
from kenyon.utils.threads import parallel_map

# Chunks of a batch, for four cores, and samples of a chunk: with fewer, convolutions are slow.
CHUNKS, FEWEST, MOST = 4, 10, 128


@dataclass(frozen=True)
class Chunk:
    learner: int
    samples: slice


# (chunk, its learner's parameters by name) -> features (samples, F)
Features = Callable[[Chunk, dict[str, Tensor]], Tensor]


def chunks_of(batch: int, learners: int) -> list[Chunk]:
    size = min(MOST, max(FEWEST, -(-batch * learners // CHUNKS)))
    return [Chunk(k, slice(i, min(i + size, batch))) for k in range(learners) for i in range(0, batch, size)]


def in_chunks(features: Features, params: dict[str, Tensor], batch: int, learners: int) -> Tensor:
    """Return features (K, B, F), computed in chunks, from parameters (K, ...) by name."""
    chunks = chunks_of(batch, learners)
    return _InChunks.apply(features, chunks, tuple(params), *params.values())  # type: ignore[no-untyped-call]


class _InChunks(torch.autograd.Function):
    """Stores the graph of every chunk, so that the backward pass is computed in parallel too."""

    @staticmethod
    def forward(ctx: Any, features: Features, chunks: list[Chunk], names: tuple[str, ...], *params: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad)

        def forward(chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
            own = {n: p[chunk.learner].detach().requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                return features(chunk, own), own

        graphs = parallel_map(forward, chunks)
        if needed:
            ctx.chunks, ctx.graphs = chunks, graphs
        return torch.cat([out.detach() for out, _ in graphs]).unflatten(0, (chunks[-1].learner + 1, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def backward(number: int) -> tuple[Tensor, ...]:
            chunk, (out, own) = ctx.chunks[number], ctx.graphs[number]
            return torch.autograd.grad(out, tuple(own.values()), slope[chunk.learner, chunk.samples])

        gradients = parallel_map(backward, range(len(ctx.chunks)))
        totals: list[tuple[Tensor, ...]] = []  # of each learner
        for chunk, gradient in zip(ctx.chunks, gradients, strict=True):
            if chunk.learner == len(totals):
                totals.append(gradient)
            else:
                for total, more in zip(totals[-1], gradient, strict=True):
                    total.add_(more)
        ctx.graphs = None
        return (None, None, None, *(_stacked(each) for each in zip(*totals, strict=True)))


def _stacked(each: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0)


MANY = 2**20  # weights of a layer, which exceed the cache of a core
SHARDS = 4  # at least, for four cores
MOST_WEIGHTS = 2**21  # weights of a shard


def has_many_weights(step: Step) -> bool:
    return type(step) is LinearStep and step.layer.weight.numel() >= MANY


def sharded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, memory: Tensor | None = None) -> Tensor:
    """Return x (K, B, I) by weights (K, O, I) plus biases (K, O): (K, B, O), computed in the type of x.

    `memory`: for the gradient of the weights, which may be written there.
    """
    if bias is None:
        bias = weight.new_zeros(weight.shape[:2])
    return _ShardedLinear.apply(x, weight, bias, memory)  # type: ignore[no-untyped-call]


def shards_of(length: int, other: int) -> list[slice]:
    """Return shards of an axis of a matrix, given the lengths of this axis and of the other."""
    size = max(1, min(-(-length // SHARDS), MOST_WEIGHTS // other))
    return [slice(first, min(first + size, length)) for first in range(0, length, size)]


class _ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        K, O, I = weight.shape  # noqa: E741
        ctx.memory = memory
        ctx.save_for_backward(x, weight)
        y, bias = x.new_empty(K, x.shape[1], O), bias.to(x.dtype)

        def outputs(k: int, shard: slice) -> None:
            y[k, :, shard] = F.linear(x[k], weight[k, shard].to(x.dtype), bias[k, shard])

        _call_all([partial(outputs, k, shard) for k in range(K) for shard in shards_of(O, I)])
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        K, O, I = weight.shape  # noqa: E741
        dw = torch.empty_like(weight) if ctx.memory is None else ctx.memory
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None

        def of_weights(k: int, shard: slice) -> None:
            slope = dy[k, :, shard].T
            if dw.dtype is x.dtype:
                torch.mm(slope, x[k], out=dw[k, shard])
            else:
                dw[k, shard].copy_(slope @ x[k])

        def of_inputs(k: int, shard: slice) -> None:
            assert dx is not None
            dx[k, :, shard] = dy[k] @ weight[k, :, shard].to(x.dtype)

        work = [partial(of_weights, k, shard) for k in range(K) for shard in shards_of(O, I)]
        if dx is not None:
            work += [partial(of_inputs, k, shard) for k in range(K) for shard in shards_of(I, O)]
        _call_all(work)
        return dx, dw, dy.sum(1, dtype=weight.dtype), None


def _call_all(work: Sequence[Callable[[], None]]) -> None:
    parallel_map(lambda one: one(), work)


MEMORY = torch.channels_last  # of images: a CPU's convolutions are 1.1 to 1.7 times as fast for our backbones


class Looped(LayerExecutor):
    """One run, in chunks of a learner and some samples on the cores of a CPU."""

    @classmethod
    def for_backbone(cls, request: Request) -> Looped | None:
        if request.device.type != "cpu" or not known_layers(request.backbone, request.shape):
            return None
        assert isinstance(request.backbone, nn.Sequential)
        return cls(request.backbone, request.shape, request.learners)

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int) -> None:
        super().__init__(backbone, shape, learners)
        first = next((i for i, step in enumerate(self.steps) if has_many_weights(step)), len(self.steps))
        self.chunked, self.sharded = self.steps[:first], self.steps[first:]

    def forward(self, params: Params, images: Tensor, noise: Tensor | None, *, rows: Tensor | None = None) -> Tensor:
        site_bytes = self.bytes_of(noise, len(images))
        if images.ndim == 4:
            images = images.contiguous(memory_format=MEMORY)

        def features(chunk: Chunk, own: Params) -> Tensor:
            samples = chunk.samples
            drawn = [each if each is None else each[samples] for each in site_bytes]
            return self._learner(own, chunk.learner, images[samples], drawn)

        names = [f"{step.name}.{kind}" for step in self.chunked for kind in ("weight", "bias")]
        x = in_chunks(features, {name: params[name] for name in names if name in params}, len(images), self.learners)
        for step in self.sharded:
            match step:
                case LinearStep():
                    weight = f"{step.name}.weight"
                    memory = gradient_memory(params, weight)
                    x = sharded_linear(x, params[weight], params.get(f"{step.name}.bias"), memory)
                case DropoutStep():
                    drawn = site_bytes[step.number]
                    x = x if drawn is None else dropped_plain(x, drawn, step.site)
                case FlattenStep():
                    pass  # samples are vectors already
                case _:
                    x = step.layer(x)
        return x

    def _learner(self, params: Params, k: int, x: Tensor, site_bytes: list[Tensor | None]) -> Tensor:
        """Compute samples of a chunk. Weights are converted here, so that gradients are summed in their own type."""
        for step in self.chunked:
            factor = None
            if step.site is not None and (drawn := site_bytes[step.number]) is not None:
                factor = dropout_factor(step.site, drawn, k, x.dtype)
            match step:
                case ConvolutionStep(layer=layer):
                    w, b = _weights(params, step.name, x.dtype)
                    x = F.conv2d(x, w, b, layer.stride, layer.padding, layer.dilation)
                    if step.pool is not None:  # before ReLU and dropout: the same result, with fewer numbers
                        x = step.pool(x)
                    if factor is not None:
                        x = x.mul_(factor)
                    if step.relu:
                        x = x.relu_()
                case LinearStep():
                    x = F.linear(x, *_weights(params, step.name, x.dtype))
                case DropoutStep():
                    x = x if factor is None else x * factor
                case _:
                    x = step.layer(x)
        return x


def _weights(params: Params, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    bias = params.get(f"{name}.bias")
    return params[f"{name}.weight"].to(dtype), None if bias is None else bias.to(dtype)
