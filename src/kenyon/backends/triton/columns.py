"""Runs that are computed in streams of their own, forwards and backwards, between work on all of them at once.

A product over the channels of maps, added to other maps where they lie: none is written for the sake of a sum.

The active columns of several runs on a GPU: see `columns` for what is computed.

Maps are in channels_last memory with their channels padded for the tensor cores, and what follows a convolution is
one pass (see `fused`). Kernels are laid out for all runs at once; then the convolutions of each run go through a
stream of their own, and dense layers are batched products of all runs.

The knowledge base that a column looks at is computed beside it without gradients, and U's product is added to what
W's convolution left: no map is written for the sake of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import Params, PlannedLayers, padded
from kenyon.backends.triton import fused
from kenyon.backends.triton.dense import dense_layer, wide_products
from kenyon.backends.triton.stacked import behind_convolution
from kenyon.utils.threads import in_streams

Parameters = dict[str, Tensor]
# (run, its parameters by name) -> what it computes of them, and perhaps something that does not depend on them
Work = Callable[[int, Parameters], tuple[Tensor, Tensor | None]]


def beside(work: Work, params: Parameters, streams: Sequence[torch.cuda.Stream]) -> tuple[Tensor, Tensor | None]:
    """Both results of every run, (R, ...), from parameters (R, ...) by name, each as `of_run` has it."""
    needed = torch.is_grad_enabled() and any(p.requires_grad for p in params.values())
    return _Beside.apply(work, streams, needed, tuple(params), *params.values())  # type: ignore[no-untyped-call]


def of_run(value: Tensor, run: int) -> Tensor:
    """One run's. Kernels (R, O, h, w, I) become (O, I, h, w) in channels_last memory."""
    return value[run].movedim(-1, 1) if value.ndim == 5 else value[run]


class _Beside(torch.autograd.Function):
    """Keeps the graph of every run, so that its backward pass goes through its stream too."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        streams: Sequence[torch.cuda.Stream],
        needed: bool,
        names: tuple[str, ...],
        *params: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        found: list[tuple[Tensor, Tensor | None]] = []
        leaves: list[Parameters] = []

        def forwards(run: int) -> None:
            mine = {n: of_run(p.detach(), run).requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                found.append(work(run, mine))
            leaves.append(mine)

        in_streams(forwards, range(len(params[0])), streams)
        if needed:
            ctx.save_for_backward(*params)
            ctx.kept = [x for x, _ in found], leaves, streams
        out = torch.stack([x.detach() for x, _ in found])
        others = [z for _, z in found if z is not None]
        if not others:
            return out, None
        other = torch.stack(others)
        ctx.mark_non_differentiable(other)
        return out, other

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        found, leaves, streams = ctx.kept
        gradients = [torch.empty_like(p) for p in ctx.saved_tensors]

        def backwards(run: int) -> None:
            mine = torch.autograd.grad(found[run], tuple(leaves[run].values()), slope[run])
            torch._foreach_copy_([of_run(g, run) for g in gradients], mine)

        in_streams(backwards, range(len(found)), streams)
        ctx.kept = None
        return (None, None, None, None, *gradients)


SHARES = 64  # parts in which a gradient of weights is summed, so that many processors work on it


def mixed(maps: Tensor, inner: Tensor, U: Tensor) -> Tensor:
    """maps + U inner, over the maps (B, O, H, W), whose old values are lost: nobody else may need them.

    `inner` (B, I, H, W) is in channels_last memory as they are; U is (O, I), and its gradient in float32.
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
        shares = gcd(len(dy), SHARES)
        d_U = wide_products(dy.unflatten(0, (shares, -1)).transpose(1, 2), h.unflatten(0, (shares, -1))).sum(0)
        return gradient, d_inner, d_U


def _pixels(maps: Tensor) -> Tensor:
    """(B, C, H, W) in channels_last memory as (B * H * W, C)"""
    return maps.movedim(1, -1).view(-1, maps.shape[1])


PIXEL = 8  # channels of an image are a multiple of this: 16 bytes in bfloat16


class Aligned(PlannedLayers):
    """For `known` backbones: convolutions and what is between them, then nn.Flatten, then dense layers."""

    def __init__(self, backbone: nn.Sequential, shape: tuple[int, ...]) -> None:
        super().__init__(backbone, shape, 1, folds=True)
        kinds = [type(step.layer) for step in self.steps]
        self.channels = shape[0]
        self.flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else len(kinds)
        self.known = self.flat < len(kinds) and not (
            nn.Linear in kinds[: self.flat] or nn.Conv2d in kinds[self.flat :]
        )
        # Behind the input of this layer the knowledge base is of no use.
        self.last = max((place for place, kind in enumerate(kinds) if kind in (nn.Conv2d, nn.Linear)), default=0)
        self.streams: list[torch.cuda.Stream] = []

    def features(
        self,
        views: Params,
        images: Tensor,
        pieces: list[Tensor | None],
        dtype: torch.dtype,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Named views (R, ...) of rows, images (R, B, C, H, W) and the bytes of each dropout (R, B, ...), None
        without: (R, B, F), computed in `dtype`.

        `seen`: what each step of the knowledge base before the flattening gives to the next, (R, B, H, W, C) with C
        padded, where somebody has computed it.
        """
        z: Tensor | None
        if self.flat:
            x, z = self._through_convolutions(views, _padded(images, dtype), pieces, seen)
        else:
            x = z = images.flatten(2).to(dtype)
        for place, step in enumerate(self.steps[self.flat :], self.flat):
            name, layer = step.name, step.layer
            if isinstance(layer, nn.Linear):
                x = _dense(x, views, f"active.{name}")
                if f"lateral.{name}.V" in views:
                    assert z is not None
                    inner = dense_layer(z, views[f"lateral.{name}.V"], views[f"lateral.{name}.c"]).relu()
                    x = torch.baddbmm(x, inner, _scaled(views, name).to(dtype).transpose(1, 2))
                if z is not None and place < self.last:
                    with torch.no_grad():
                        z = _dense(z, views, f"seen.{name}")
            elif step.site is not None:
                if (piece := pieces[step.number]) is not None:
                    x = x * (piece[..., : x.shape[2]] >= step.site.threshold) * step.site.scale
            elif not isinstance(layer, nn.Flatten):  # nothing is left to flatten
                x, z = layer(x), layer(z) if z is not None and place < self.last else None
        return x

    def _through_convolutions(
        self, views: Params, x: Tensor, pieces: list[Tensor | None], maps: list[Tensor] | None
    ) -> tuple[Tensor, Tensor | None]:
        """What a column and the knowledge base it sees give to the dense layers, (R, B, F) each; the latter only if
        it is of use there.
        """
        trained = self._laid_out(views, x.shape[2], x.dtype)
        weights = self._laid_out(views, x.shape[2], x.dtype, seen=True) if maps is None else {}

        def vectors(run: int, mine: Params) -> tuple[Tensor, Tensor | None]:
            if maps is None:
                seen = self._seen({name: of_run(value, run) for name, value in weights.items()}, x[run])
            else:
                seen = (each[run].movedim(-1, 1).to(x.dtype) for each in maps)
            return self._maps(mine, seen, x[run], [None if piece is None else piece[run] for piece in pieces])

        return beside(vectors, trained, self._streams(len(x), x.device))

    def _streams(self, runs: int, device: torch.device) -> list[torch.cuda.Stream]:
        if device.type != "cuda" or runs == 1:
            return []
        while len(self.streams) < runs:
            self.streams.append(torch.cuda.Stream(device))
        return self.streams

    def _laid_out(self, views: Params, channels: int, dtype: torch.dtype, *, seen: bool = False) -> Params:
        """The parameters of all convolutions as they are used, of the column or of what it has `seen`. Kernels are
        (R, O, h, w, I), biases (R, O), with O and I padded.
        """
        found: Params = {}
        for step in self.steps[: self.flat]:
            if not isinstance(step.layer, nn.Conv2d):
                continue
            name, units = step.name, padded(step.layer.out_channels)
            layer = f"seen.{name}" if seen else f"active.{name}"
            found[f"{name}.W"] = _kernel(views[f"{layer}.weight"], units, channels, dtype)
            found[f"{name}.b"] = _wider(_bias(views, layer), units)
            if f"lateral.{name}.V" in views and not seen:
                found[f"{name}.V"] = _kernel(views[f"lateral.{name}.V"], units, channels, dtype)
                found[f"{name}.c"] = _wider(views[f"lateral.{name}.c"], units)
                found[f"{name}.U"] = _wider(_scaled(views, name), units, units)
            channels = units
        return found

    @torch.no_grad()
    def _seen(self, weights: Params, z: Tensor) -> Iterator[Tensor]:
        """The images (B, C, H, W) of one run on their way up the knowledge base, behind each layer."""
        for step in self.steps[: self.flat]:
            if isinstance(step.layer, nn.Conv2d):
                z = _convolved(step.layer, z, weights[f"{step.name}.W"])
                z = behind_convolution(step, z, weights[f"{step.name}.b"], None)
            elif step.site is None:
                z = step.layer(z)
            yield z

    def _maps(
        self, mine: Params, seen: Iterator[Tensor], x: Tensor, pieces: list[Tensor | None]
    ) -> tuple[Tensor, Tensor | None]:
        """Of one run: x (B, C, H, W) goes up the column, z up the knowledge base. Both come out as vectors (B, F)."""
        z, channels = x, self.channels
        for place, step in enumerate(self.steps[: self.flat]):
            name, layer = step.name, step.layer
            piece = pieces[step.number] if step.site is not None else None
            if isinstance(layer, nn.Conv2d):
                channels = layer.out_channels
                maps = _convolved(layer, x, mine[f"{name}.W"])
                if f"{name}.V" in mine:
                    inner = _convolved(layer, z, mine[f"{name}.V"])
                    relu = fused.bias_relu if fused.available(inner) else fused.bias_relu_plain
                    maps = mixed(maps, relu(inner, mine[f"{name}.c"]), mine[f"{name}.U"])
                x = behind_convolution(step, maps, mine[f"{name}.b"], piece)
            elif step.site is not None:
                x = x if piece is None else x * (piece >= step.site.threshold).movedim(-1, 1) * step.site.scale
            else:
                x = layer(x)
            if place < self.last:
                z = next(seen)
        of_use = self.flat < self.last
        return x[:, :channels].flatten(1), z[:, :channels].flatten(1) if of_use else None


def _convolved(layer: nn.Conv2d, x: Tensor, kernel: Tensor) -> Tensor:
    """Without bias."""
    out = F.conv2d(x, kernel, None, layer.stride, layer.padding, layer.dilation)
    return out.contiguous(memory_format=torch.channels_last)


def _padded(images: Tensor, dtype: torch.dtype) -> Tensor:
    """(R, B, C, H, W), every run's in channels_last memory, with empty channels up to a multiple of PIXEL."""
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
    """With zeros at the end of the last axes, up to these sizes."""
    more = [edge for size, now in zip(sizes[::-1], value.shape[::-1], strict=False) for edge in (0, size - now)]
    return F.pad(value, more) if any(more) else value


def _scaled(views: Params, name: str) -> Tensor:
    """a * U: the rows of U are scaled instead of what comes out."""
    return views[f"lateral.{name}.U"] * views[f"lateral.{name}.a"].unsqueeze(-1)


def _bias(views: Params, layer: str) -> Tensor:
    """(R, O), nothing where the layer has none."""
    weight, bias = views[f"{layer}.weight"], views.get(f"{layer}.bias")
    return weight.new_zeros(weight.shape[:2]) if bias is None else bias


def _dense(x: Tensor, views: Params, layer: str) -> Tensor:
    return dense_layer(x, views[f"{layer}.weight"], _bias(views, layer))
