"""The active columns of several runs on a GPU (Progress & Compress); see `models.columns` for their equations.

Maps are in channels_last memory with channels padded for the tensor cores, and the operations after a convolution are
one pass (see `fused`). Weights are converted for all runs at once; then the convolutions of each run are computed in
a stream of its own, forward and backward, and dense layers are batched products of all runs.

The knowledge base that a column receives is computed along with it, without gradients. The product with U is added to
the output of W's convolution in place, so that no map is written only to be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import (
    ConvolutionStep,
    DropoutStep,
    FlattenStep,
    LinearStep,
    Params,
    PlannedLayers,
    padded,
)
from kenyon.backends.triton import fused
from kenyon.backends.triton.dense import dense_layer, wide_products
from kenyon.backends.triton.stacked import after_convolution
from kenyon.utils.threads import in_streams

Parameters = dict[str, Tensor]
# (run, its parameters by name) -> a result that depends on the parameters, and possibly one that does not
Work = Callable[[int, Parameters], tuple[Tensor, Tensor | None]]


def by_runs(work: Work, params: Parameters, streams: Sequence[torch.cuda.Stream]) -> tuple[Tensor, Tensor | None]:
    """Compute each run in a stream of its own, and return both results of all runs, (R, ...).

    `params`: (R, ...) by name; `work` receives those of its run in the form of `of_run`.
    """
    needed = torch.is_grad_enabled() and any(p.requires_grad for p in params.values())
    return _ByRuns.apply(work, streams, needed, tuple(params), *params.values())  # type: ignore[no-untyped-call]


def of_run(value: Tensor, run: int) -> Tensor:
    """Return one run's parameter. Kernels (R, O, h, w, I) become (O, I, h, w) in channels_last memory."""
    return value[run].movedim(-1, 1) if value.ndim == 5 else value[run]


class _ByRuns(torch.autograd.Function):
    """Stores the graph of every run, so that its backward pass runs in its stream too."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        streams: Sequence[torch.cuda.Stream],
        needed: bool,
        names: tuple[str, ...],
        *params: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        results: list[tuple[Tensor, Tensor | None]] = []
        leaves: list[Parameters] = []

        def forward(run: int) -> None:
            own = {n: of_run(p.detach(), run).requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                results.append(work(run, own))
            leaves.append(own)

        in_streams(forward, range(len(params[0])), streams)
        if needed:
            ctx.save_for_backward(*params)
            ctx.graphs = [x for x, _ in results], leaves, streams
        out = torch.stack([x.detach() for x, _ in results])
        constants = [z for _, z in results if z is not None]
        if not constants:
            return out, None
        constant = torch.stack(constants)
        ctx.mark_non_differentiable(constant)
        return out, constant

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        results, leaves, streams = ctx.graphs
        gradients = [torch.empty_like(p) for p in ctx.saved_tensors]

        def backward(run: int) -> None:
            own = torch.autograd.grad(results[run], tuple(leaves[run].values()), slope[run])
            torch._foreach_copy_([of_run(g, run) for g in gradients], own)

        in_streams(backward, range(len(results)), streams)
        ctx.graphs = None
        return (None, None, None, None, *gradients)


CHUNKS = 64  # partial sums of a gradient of weights, so that many processors work on it


def mixed(maps: Tensor, inner: Tensor, U: Tensor) -> Tensor:
    """Return maps + U inner in the memory of the maps (B, O, H, W), which no other backward pass may need.

    `inner` (B, I, H, W) is in channels_last memory, too; U is (O, I), and its gradient in float32.
    """
    return _Mixed.apply(maps, inner, U)  # type: ignore[no-untyped-call]


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, inner: Tensor, U: Tensor) -> Tensor:
        U = U.to(maps.dtype)
        _pixels(maps).addmm_(_pixels(inner), U.t())
        ctx.mark_dirty(maps)
        ctx.save_for_backward(inner, U)
        return maps

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner, U = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dy, h = _pixels(gradient), _pixels(inner)
        d_inner = (dy @ U).view(inner.movedim(1, -1).shape).movedim(-1, 1)
        chunks = gcd(len(dy), CHUNKS)
        d_U = wide_products(dy.unflatten(0, (chunks, -1)).transpose(1, 2), h.unflatten(0, (chunks, -1))).sum(0)
        return gradient, d_inner, d_U


def _pixels(maps: Tensor) -> Tensor:
    """Return (B, C, H, W) in channels_last memory as (B * H * W, C)."""
    return maps.movedim(1, -1).view(-1, maps.shape[1])


PIXEL = 8  # channels of an image are a multiple of this: 16 bytes in bfloat16


class Aligned(PlannedLayers):
    """Columns of backbones that are convolutions and channelwise layers, nn.Flatten, and dense layers.

    `known`: the backbone has this form.
    """

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...]) -> None:
        super().__init__(backbone, shape, 1, folds=True)
        kinds = [type(step) for step in self.steps]
        self.channels = shape[0]
        self.flat = kinds.index(FlattenStep) if FlattenStep in kinds else len(kinds)
        self.known = self.flat < len(kinds) and not (
            LinearStep in kinds[: self.flat] or ConvolutionStep in kinds[self.flat :]
        )
        # The knowledge base is not used after the input of this layer.
        self.last = max((i for i, kind in enumerate(kinds) if kind in (ConvolutionStep, LinearStep)), default=0)
        self.streams: list[torch.cuda.Stream] = []

    def features(
        self,
        views: Params,
        images: Tensor,
        site_bytes: list[Tensor | None],
        dtype: torch.dtype,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Return features (R, B, F), computed in `dtype`, from named views (R, ...) and images (R, B, C, H, W).

        `site_bytes`: of each dropout (R, B, ...), or None. `seen`: the output of each step of the knowledge base
        before the flattening, (R, B, H, W, C) with C padded, if it is known already.
        """
        z: Tensor | None
        if self.flat:
            x, z = self._through_convolutions(views, _padded(images, dtype), site_bytes, seen)
        else:
            x = z = images.flatten(2).to(dtype)
        for number, step in enumerate(self.steps[self.flat :], self.flat):
            name = step.name
            match step:
                case LinearStep():
                    x = _dense(x, views, f"active.{name}")
                    if f"lateral.{name}.V" in views:
                        assert z is not None
                        inner = dense_layer(z, views[f"lateral.{name}.V"], views[f"lateral.{name}.c"]).relu()
                        x = torch.baddbmm(x, inner, _scaled(views, name).to(dtype).transpose(1, 2))
                    if z is not None and number < self.last:
                        with torch.no_grad():
                            z = _dense(z, views, f"seen.{name}")
                case DropoutStep():
                    if (drawn := site_bytes[step.number]) is not None:
                        x = x * (drawn[..., : x.shape[2]] >= step.site.threshold) * step.site.scale
                case FlattenStep():
                    pass  # samples are vectors already
                case _:
                    x, z = step.layer(x), step.layer(z) if z is not None and number < self.last else None
        return x

    def _through_convolutions(
        self, views: Params, x: Tensor, site_bytes: list[Tensor | None], maps: list[Tensor] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of the dense layers, (R, B, F), of a column and of its knowledge base, which is None if
        they do not use it.
        """
        trained = self._laid_out(views, x.shape[2], x.dtype)
        weights = self._laid_out(views, x.shape[2], x.dtype, seen=True) if maps is None else {}

        def vectors(run: int, own: Params) -> tuple[Tensor, Tensor | None]:
            if maps is None:
                seen = self._seen({name: of_run(value, run) for name, value in weights.items()}, x[run])
            else:
                seen = (each[run].movedim(-1, 1).to(x.dtype) for each in maps)
            return self._maps(own, seen, x[run], [None if drawn is None else drawn[run] for drawn in site_bytes])

        return by_runs(vectors, trained, self._streams(len(x), x.device))

    def _streams(self, runs: int, device: torch.device) -> list[torch.cuda.Stream]:
        if device.type != "cuda" or runs == 1:
            return []
        while len(self.streams) < runs:
            self.streams.append(torch.cuda.Stream(device))
        return self.streams

    def _laid_out(self, views: Params, channels: int, dtype: torch.dtype, *, seen: bool = False) -> Params:
        """Return the parameters of all convolutions in the form of their use, of the column or of the `seen` base.

        Kernels are (R, O, h, w, I), biases (R, O), with O and I padded.
        """
        params: Params = {}
        for step in (step for step in self.steps[: self.flat] if type(step) is ConvolutionStep):
            name, units = step.name, padded(step.layer.out_channels)
            layer = f"seen.{name}" if seen else f"active.{name}"
            params[f"{name}.W"] = _kernel(views[f"{layer}.weight"], units, channels, dtype)
            params[f"{name}.b"] = _wider(_bias(views, layer), units)
            if f"lateral.{name}.V" in views and not seen:
                params[f"{name}.V"] = _kernel(views[f"lateral.{name}.V"], units, channels, dtype)
                params[f"{name}.c"] = _wider(views[f"lateral.{name}.c"], units)
                params[f"{name}.U"] = _wider(_scaled(views, name), units, units)
            channels = units
        return params

    @torch.no_grad()
    def _seen(self, weights: Params, z: Tensor) -> Iterator[Tensor]:
        """Yield the output of each layer of the knowledge base for images (B, C, H, W) of one run."""
        for step in self.steps[: self.flat]:
            match step:
                case ConvolutionStep():
                    z = _convolved(step.layer, z, weights[f"{step.name}.W"])
                    z = after_convolution(step, z, weights[f"{step.name}.b"], None)
                case DropoutStep():
                    pass  # the knowledge base has no dropout here
                case _:
                    z = step.layer(z)
            yield z

    def _maps(
        self, params: Params, seen: Iterator[Tensor], x: Tensor, site_bytes: list[Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Return vectors (B, F) of a run's column, for images x (B, C, H, W), and of its knowledge base if needed."""
        z, channels = x, self.channels
        for number, step in enumerate(self.steps[: self.flat]):
            name = step.name
            drawn = site_bytes[step.number] if step.site is not None else None
            match step:
                case ConvolutionStep(layer=layer):
                    channels = layer.out_channels
                    maps = _convolved(layer, x, params[f"{name}.W"])
                    if f"{name}.V" in params:
                        inner = _convolved(layer, z, params[f"{name}.V"])
                        relu = fused.bias_relu if fused.available(inner) else fused.bias_relu_plain
                        maps = mixed(maps, relu(inner, params[f"{name}.c"]), params[f"{name}.U"])
                    x = after_convolution(step, maps, params[f"{name}.b"], drawn)
                case DropoutStep(site=site):
                    x = x if drawn is None else x * (drawn >= site.threshold).movedim(-1, 1) * site.scale
                case _:
                    x = step.layer(x)
            if number < self.last:
                z = next(seen)
        needed = self.flat < self.last
        return x[:, :channels].flatten(1), z[:, :channels].flatten(1) if needed else None


def _convolved(layer: nn.Conv2d, x: Tensor, kernel: Tensor) -> Tensor:
    """Convolve without bias."""
    out = F.conv2d(x, kernel, None, layer.stride, layer.padding, layer.dilation)
    return out.contiguous(memory_format=torch.channels_last)


def _padded(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (R, B, C, H, W), each run in channels_last memory, with zero channels up to a multiple of PIXEL."""
    R, B, C, H, W = images.shape
    wide = torch.zeros(R, B, H, W, -(-C // PIXEL) * PIXEL, dtype=dtype, device=images.device)
    wide[..., :C].copy_(images.movedim(2, -1))
    return wide.movedim(-1, 2)


def _kernel(weight: Tensor, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
    """(R, O, I, h, w) -> (R, outputs, h, w, inputs)"""
    turned = weight.movedim(2, -1)
    more = (0, inputs - turned.shape[4], 0, 0, 0, 0, 0, outputs - turned.shape[1])
    return (F.pad(turned, more) if any(more) else turned).to(dtype, memory_format=torch.contiguous_format)


def _wider(value: Tensor, *sizes: int) -> Tensor:
    """Pad the last axes with zeros at the end, to these sizes."""
    more = [edge for size, now in zip(sizes[::-1], value.shape[::-1], strict=False) for edge in (0, size - now)]
    return F.pad(value, more) if any(more) else value


def _scaled(views: Params, name: str) -> Tensor:
    """Return a * U: scaling the rows of U replaces scaling the output."""
    return views[f"lateral.{name}.U"] * views[f"lateral.{name}.a"].unsqueeze(-1)


def _bias(views: Params, layer: str) -> Tensor:
    """Return the bias (R, O), zeros if the layer has none."""
    weight, bias = views[f"{layer}.weight"], views.get(f"{layer}.bias")
    return weight.new_zeros(weight.shape[:2]) if bias is None else bias


def _dense(x: Tensor, views: Params, layer: str) -> Tensor:
    return dense_layer(x, views[f"{layer}.weight"], _bias(views, layer))
