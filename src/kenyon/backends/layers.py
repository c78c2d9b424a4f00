"""Backbones of known layers: their shapes, their dropout, and their layers as steps of an executor.

Shapes are derived from the layers' settings, since computing the numbers of a large network takes long.

Dropout masks come from random bytes drawn outside, so that every run has its own masks and all executors agree. One
byte decides one unit: a probability is rounded to a multiple of 1/256 (0.25 and 0.5 are exact), and survivors are
scaled by the rounded value, so that expectations stay right.

Kernels that keep a map's size pad it with zeros. To compute a convolution without padding, they place the image in a
larger frame, at an offset where every pooling window covers the same pixels as without the frame. The pixels at the
border of a map are then wrong, one more on each side for every layer, and are ignored; the valid part of the last map
is cut out. Ignored pixels neither affect that part nor receive a gradient from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError

Params = dict[str, Tensor]
Shape = tuple[int, ...]  # of one sample

# ---------------------------------------------------------------------- shapes


def shapes_through(layers: Iterable[nn.Module], shape: Shape) -> Iterator[Shape | None]:
    """Yield the shape of a sample after each of these known layers; None, as the last one, if a layer cannot take
    its input.
    """
    for layer in layers:
        try:
            after = _shape_after(layer, shape)
        except (RuntimeError, ValueError, IndexError):  # raised by pooling of maps that are too small
            after = None
        yield after
        if after is None:
            return
        shape = after


def _shape_after(layer: nn.Module, shape: Shape) -> Shape | None:
    if rule := _SHAPES.get(type(layer)):
        return rule(layer, shape)
    with torch.no_grad():
        return tuple(layer(torch.zeros(1, *shape)).shape[1:])  # a layer without weights is quick to compute


def _linear_shape(layer: nn.Linear, shape: Shape) -> Shape | None:
    return (*shape[:-1], layer.out_features) if shape[-1] == layer.in_features else None


def _convolution_shape(layer: nn.Conv2d, shape: Shape) -> Shape | None:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        return None
    if layer.padding == "same":
        return (layer.out_channels, *shape[1:])
    sides = [
        (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for side, padding, dilation, kernel, stride in zip(
            shape[1:], padding_of(layer) or (0, 0), layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    ]
    return (layer.out_channels, *sides) if min(sides) > 0 else None


def padding_of(layer: nn.Conv2d) -> tuple[int, int] | None:
    """Return the padding as numbers, or None if it is given by name."""
    return None if isinstance(layer.padding, str) else (layer.padding[0], layer.padding[1])


_SHAPES: dict[type[nn.Module], Callable[[Any, Shape], Shape | None]] = {
    nn.Linear: _linear_shape,
    nn.Conv2d: _convolution_shape,
    nn.Dropout: lambda _, shape: shape,
}

ALIGN = 16  # channels of all learners together are padded to a multiple of this for the tensor cores
MANY = 256  # above this, to a multiple of four times as many, which divide among warps


def padded(channels: int) -> int:
    """Return the number of channels with padding."""
    align = ALIGN if channels <= MANY else 4 * ALIGN
    return -(-channels // align) * align


def padded_to_eight(channels: int) -> int:
    """Return the number of channels, padded to units of 16 bytes in bfloat16."""
    return -(-channels // 8) * 8


# ---------------------------------------------------------------------- dropout


@dataclass(frozen=True)
class DropoutSite:
    """One dropout layer of a backbone of K learners.

    Its random bytes have the shape (B, H, W, padded(K * C)) after a convolution and (B, padded(K * F)) after a dense
    layer; learner k owns the channels k*C..(k+1)*C. A unit is kept if its byte reaches the threshold.
    """

    probability: float
    shape: tuple[int, ...]  # of one sample: (H, W, padded(K * C)) or (padded(K * F),)
    channels: int  # of one learner: C or F

    @property
    def threshold(self) -> int:
        return round(self.probability * 256)

    @property
    def scale(self) -> float:
        return 256 / (256 - self.threshold)


def dropout_sites(layers: Sequence[nn.Module], shape: tuple[int, ...], learners: int) -> tuple[DropoutSite, ...]:
    """Return the dropout layers among a backbone's layers, whose first takes samples of this shape."""
    sites = []
    for layer, after in zip(layers, shapes_through(layers, shape), strict=True):
        assert after is not None  # the backbone has been tried out
        if type(layer) is nn.Dropout:
            if round(layer.p * 256) >= 256:
                raise ConfigError(f"Dropout of {layer.p} leaves nothing. Choose a probability below 1.")
            sites.append(DropoutSite(layer.p, (*after[1:], padded(learners * after[0])), after[0]))
    return tuple(sites)


def split_noise(noise: Tensor, sites: tuple[DropoutSite, ...], batch: int) -> list[Tensor]:
    """Split random bytes (..., n), of one run or of several, into those of each site, (..., B, *site.shape) uint8."""
    sizes = [batch * prod(site.shape) for site in sites]
    chunks = noise[..., : sum(sizes)].split(sizes, dim=-1)
    return [chunk.view(*noise.shape[:-1], batch, *site.shape) for chunk, site in zip(chunks, sites, strict=True)]


def dropout_factor(site: DropoutSite, noise: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Return the factor of learner k's units, the scale or 0, in the shape of its activations.

    `noise`: the bytes of the site, (B, *site.shape).
    """
    own = noise[..., k * site.channels : (k + 1) * site.channels]
    factor = (own >= site.threshold).to(dtype).mul_(site.scale)
    return factor.movedim(-1, 1) if factor.ndim == 4 else factor


def noise_size(sites: tuple[DropoutSite, ...], batch: int) -> int:
    """Return the number of random bytes that one run needs for one batch."""
    return sum(batch * prod(site.shape) for site in sites)


# ---------------------------------------------------------------------- frames of images

MULTIPLE = 8  # of the sides of all maps that are convolved
FRAMES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Frame:
    """A square that an image is placed in, and the valid part of the maps computed from it."""

    side: int
    offset: int  # of the image, from the top and from the left
    first: int  # first valid row and column of the last map
    size: int  # number of valid rows and columns of the last map
    rows: tuple[tuple[int, int], ...]  # (first, size) of each convolution's output, before pooling


def frame_of(side: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """Return the smallest frame for square images and 3x3 convolutions, each given as (padding, followed by 2x2
    pooling).

    None if there is no such frame, or if only some of the layers have padding. With padding the frame is the image: a
    wider one would give the layers something else than zeros around it.
    """
    paddings = {padding for padding, _ in layers}
    if paddings == {1}:
        return _frame_at(side, side, 0, layers)
    if paddings != {0}:
        return None
    offsets = range(2 ** sum(pooled for _, pooled in layers))
    places = ((wide, offset) for wide in FRAMES for offset in offsets if offset + side <= wide)
    return next((frame for wide, offset in places if (frame := _frame_at(side, wide, offset, layers))), None)


def _frame_at(side: int, wide: int, offset: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """Return the frame, or None if a map's side does not suit the kernels or a pooling window would shift."""
    map, first, size, rows = wide, offset, side, []
    for padding, pooled in layers:
        if map % MULTIPLE:
            return None
        if padding == 0:
            first, size = first + 1, size - 2
        rows.append((first, size))
        if pooled:
            if first % 2:
                return None
            map, first, size = map // 2, first // 2, size // 2
    return Frame(wide, offset, first, size, tuple(rows)) if size > 0 else None


# ---------------------------------------------------------------------- steps


@dataclass(frozen=True)
class Step:
    """A layer of a backbone. Executors switch on its class."""

    name: str
    layer: nn.Module
    site: DropoutSite | None = None  # of the dropout in this step
    number: int = 0  # index of `site` among the dropout sites

    def with_next(self, step: Step) -> Step | None:
        """Return this step with the following one included, or None if that stays a step of its own."""
        return None


@dataclass(frozen=True)
class ChannelwiseStep(Step):
    """A layer without parameters that treats every channel alike."""


@dataclass(frozen=True)
class DropoutStep(Step):
    """Dropout with a probability above 0."""

    site: DropoutSite


@dataclass(frozen=True)
class FlattenStep(Step):
    """Maps or vectors (B, ...) as vectors (B, F)."""


@dataclass(frozen=True)
class LinearStep(Step):
    """A dense layer."""

    layer: nn.Linear


@dataclass(frozen=True)
class ConvolutionStep(Step):
    """A convolution with its bias; if folded, with the ReLU, pooling and dropout that follow it, in this order."""

    layer: nn.Conv2d
    relu: bool = False
    pool: nn.MaxPool2d | None = None

    def with_next(self, step: Step) -> Step | None:
        if isinstance(step, DropoutStep):
            return replace(self, site=step.site, number=step.number) if self.pool and self.site is None else None
        if self.pool:
            return None
        match step.layer:
            case nn.ReLU() if not self.relu:
                return replace(self, relu=True)
            case nn.MaxPool2d() as pool if _is_simple(pool):
                return replace(self, pool=pool)
        return None


# Types are compared exactly: a subclass may compute something else.
STEP_TYPES: dict[type[nn.Module], type[Step]] = {
    nn.Conv2d: ConvolutionStep,
    nn.Linear: LinearStep,
    nn.Flatten: FlattenStep,
    nn.Dropout: DropoutStep,
    nn.ReLU: ChannelwiseStep,
    nn.GELU: ChannelwiseStep,
    nn.SiLU: ChannelwiseStep,
    nn.Tanh: ChannelwiseStep,
    nn.LeakyReLU: ChannelwiseStep,
    nn.MaxPool2d: ChannelwiseStep,
    nn.AvgPool2d: ChannelwiseStep,
    nn.AdaptiveAvgPool2d: ChannelwiseStep,
    nn.Identity: ChannelwiseStep,
}


def known_layers(backbone: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return True if executors of single layers understand every layer, for samples of this shape."""
    if type(backbone) is not nn.Sequential or not all(_is_known(layer) for layer in backbone):
        return False
    if not all(p.requires_grad for p in backbone.parameters()) or len({m.training for m in backbone.modules()}) > 1:
        return False  # some parts are frozen
    kinds = [STEP_TYPES[type(layer)] for layer in backbone]
    flattens = 0 if len(shape) == 1 else kinds.index(FlattenStep) if FlattenStep in kinds else len(kinds)
    if LinearStep in kinds[:flattens]:
        return False  # it would act on the last axis of something larger
    if len(shape) != 3 and ConvolutionStep in kinds:
        return False
    weighted = [layer for layer, kind in zip(backbone, kinds, strict=True) if kind in (ConvolutionStep, LinearStep)]
    if len(set(weighted)) != len(weighted):
        return False  # the weights of a layer in two places have only one name
    # Dropout before the first layer that separates learners would need an image for each learner.
    return next((kind for kind in kinds if kind is not ChannelwiseStep), None) is not DropoutStep


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in STEP_TYPES


def plan_steps(backbone: nn.Sequential, sites: Sequence[DropoutSite], *, folds: bool) -> list[Step]:
    """Return the layers as steps; `folds`: ReLU, pooling and dropout after a convolution become part of its step."""
    steps: list[Step] = []
    numbered = iter(enumerate(sites))
    for name, layer in used_layers(backbone):
        kind = STEP_TYPES[type(layer)]
        if kind is DropoutStep:
            number, site = next(numbered)
            step: Step = DropoutStep(name, layer, site, number)
        else:
            step = kind(name, layer)
        if folds and steps and (folded := steps[-1].with_next(step)) is not None:
            steps[-1] = folded
        else:
            steps.append(step)
    return steps


def used_layers(backbone: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers by name, without dropout whose probability rounds to 0."""
    # Not named_children(), which omits the second occurrence of a layer object.
    return [(n, m) for n, m in backbone._modules.items() if m is not None and not _keeps_all(m)]


def _keeps_all(layer: nn.Module) -> bool:
    return type(layer) is nn.Dropout and round(layer.p * 256) == 0


class PlannedLayers:
    """The layers of an `nn.Sequential` as steps, and the random bytes of its dropout."""

    def __init__(
        self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int, *, folds: bool = False
    ) -> None:
        """`folds`: ReLU, pooling and dropout after a convolution become part of its step."""
        self.learners = learners
        self.sites = dropout_sites([layer for _, layer in used_layers(backbone)], shape, learners)
        self.steps = plan_steps(backbone, self.sites, folds=folds)

    def noise_size(self, batch: int) -> int:
        """Return the number of random bytes that one run needs for one batch."""
        return noise_size(self.sites, batch)

    def side_by_side(self, noise: Tensor, batch: int) -> Tensor:
        """Return the bytes of several batches (G, n) as those of one batch of all their samples."""
        chunks = [chunk.flatten() for chunk in split_noise(noise, self.sites, batch)]
        return torch.cat(chunks) if chunks else noise.new_empty(0)

    def bytes_of(self, noise: Tensor | None, batch: int) -> list[Tensor | None]:
        """Return the bytes of every dropout site."""
        return [None] * len(self.sites) if noise is None else [*split_noise(noise, self.sites, batch)]


def _is_simple(layer: nn.MaxPool2d) -> bool:
    """Return True for max-pooling over square windows without padding."""
    square = isinstance(layer.kernel_size, int) and isinstance(layer.stride, int)
    return square and (layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices) == (0, 1, False, False)


def halves(pool: nn.MaxPool2d | None) -> bool:
    """Return True for pooling over adjacent 2x2 windows."""
    return pool is not None and (pool.kernel_size, pool.stride) == (2, 2)
