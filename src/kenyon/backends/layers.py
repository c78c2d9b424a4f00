"""What shapes a backbone of known layers gives, without computing its numbers: a large network takes long.

Dropout whose masks come from outside, so that every run has its own and all executions agree.

One byte decides one unit. A probability is therefore rounded to a multiple of 1/256 (0.25 and 0.5 are exact) and
survivors are scaled by the rounded value, so that expectations stay right.

Convolutions without padding as convolutions with padding, in a larger frame.

Kernels that keep a map's size pad it with zeros. Of a convolution that does not, they compute the same numbers at all
pixels but those at the border, which are then ignored, and more of them behind every further layer. So an image is
laid into a frame, at a place where every pooling meets the windows that it would meet without the frame, and in the
end the part of the last map that is right is cut out. What lies around it has no effect on that part and gets no
gradient from it: layer by layer backwards, gradients are zero at exactly those pixels that are to be ignored.

A backbone as a list of steps, as every execution but the general one sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError

Shape = tuple[int, ...]  # of one sample


def shapes_through(layers: Iterable[nn.Module], shape: Shape) -> Iterator[Shape | None]:
    """The shape of a sample behind each of the layers, which are those of `known_layers`; None, and no more, where a
    layer does not take what it is given.
    """
    for layer in layers:
        try:
            found = _behind(layer, shape)
        except (RuntimeError, ValueError, IndexError):  # as pooling has it, of maps that are too small
            found = None
        yield found
        if found is None:
            return
        shape = found


def _behind(layer: nn.Module, shape: Shape) -> Shape | None:
    if isinstance(layer, nn.Linear):
        return (*shape[:-1], layer.out_features) if shape[-1] == layer.in_features else None
    if isinstance(layer, nn.Conv2d):
        return _convolved(layer, shape)
    if isinstance(layer, nn.Dropout):
        return shape
    with torch.no_grad():
        return tuple(layer(torch.zeros(1, *shape)).shape[1:])  # without weights: that is quick


def _convolved(layer: nn.Conv2d, shape: Shape) -> Shape | None:
    if len(shape) != 3 or shape[0] != layer.in_channels:
        return None
    if layer.padding == "same":
        return (layer.out_channels, *shape[1:])
    paddings = (0, 0) if isinstance(layer.padding, str) else layer.padding
    sides = [
        (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for side, padding, dilation, kernel, stride in zip(
            shape[1:], paddings, layer.dilation, layer.kernel_size, layer.stride, strict=True
        )
    ]
    return (layer.out_channels, *sides) if min(sides) > 0 else None


ALIGN = 16  # channels of all learners together are padded to a multiple of this for the tensor cores
MANY = 256  # of more, it is a multiple of four times as many: they have to be divided among warps


def padded(channels: int) -> int:
    align = ALIGN if channels <= MANY else 4 * ALIGN
    return -(-channels // align) * align


@dataclass(frozen=True)
class DropoutSite:
    """One dropout layer of a backbone of K learners.

    Its bytes have the shape (B, H, W, padded(K * C)) behind a convolution and (B, padded(K * F)) behind a dense
    layer: learner k owns the channels k*C..(k+1)*C. A unit is kept if its byte reaches the threshold.
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
    """The dropout layers among a backbone's layers, which take samples of this shape."""
    sites = []
    for layer, found in zip(layers, shapes_through(layers, shape), strict=True):
        assert found is not None  # the backbone was tried out
        if isinstance(layer, nn.Dropout):
            if round(layer.p * 256) >= 256:
                raise ConfigError(f"Dropout of {layer.p} leaves nothing. Choose a probability below 1.")
            sites.append(DropoutSite(layer.p, (*found[1:], padded(learners * found[0])), found[0]))
    return tuple(sites)


def cut_noise(noise: Tensor, sites: tuple[DropoutSite, ...], batch: int) -> list[Tensor]:
    """Split random bytes (..., n), of one run or of several, into those of each site, (..., B, *site.shape) uint8."""
    sizes = [batch * prod(site.shape) for site in sites]
    parts = noise[..., : sum(sizes)].split(sizes, dim=-1)
    return [part.view(*noise.shape[:-1], batch, *site.shape) for part, site in zip(parts, sites, strict=True)]


def kept(site: DropoutSite, piece: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """What learner k's units are multiplied by, the scale or 0, in the shape of its activations."""
    mine = piece[..., k * site.channels : (k + 1) * site.channels]
    keep = (mine >= site.threshold).to(dtype).mul_(site.scale)
    return keep.movedim(-1, 1) if keep.ndim == 4 else keep


def noise_size(sites: tuple[DropoutSite, ...], batch: int) -> int:
    return sum(batch * prod(site.shape) for site in sites)


MULTIPLE = 8  # of the sides of all maps that are convolved
FRAMES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Frame:
    side: int
    offset: int  # of the image in it, from above and from the left
    first: int  # row and column of the last map that is right ...
    size: int  # ... and how many are
    rows: tuple[tuple[int, int], ...]  # the same of what each convolution leaves, before pooling


def frame_of(side: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """The smallest frame for square images and 3x3 convolutions: (padding, whether 2x2 pooling follows) of each.

    None where there is none, and for layers with and without padding in one network. With padding the frame is the
    image: a wider one would show the layers something else than zeros around it.
    """
    paddings = {padding for padding, _ in layers}
    if paddings == {1}:
        return _laid(side, side, 0, layers)
    if paddings != {0}:
        return None
    offsets = range(2 ** sum(pooled for _, pooled in layers))
    places = ((wide, offset) for wide in FRAMES for offset in offsets if offset + side <= wide)
    return next((found for wide, offset in places if (found := _laid(side, wide, offset, layers))), None)


def _laid(side: int, wide: int, offset: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """None where a map's side does not suit the kernels, or a pooling other windows."""
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


Params = dict[str, Tensor]

# Layers without parameters that treat every channel alike: they need no knowledge of learners.
_CHANNELWISE = (
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.LeakyReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Identity,
)
# Layers behind which every learner has activations of its own.
_PARTING = (nn.Conv2d, nn.Linear, nn.Flatten)


def known_layers(backbone: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether looped and stacked execution understand every layer, for samples of this shape.

    Types are compared exactly: a subclass may compute something else.
    """

    def known(layer: nn.Module) -> bool:
        if type(layer) is nn.Conv2d:
            return layer.groups == 1 and layer.padding_mode == "zeros"
        if type(layer) is nn.Flatten:
            return (layer.start_dim, layer.end_dim) == (1, -1)
        return type(layer) in (nn.Linear, nn.Dropout, *_CHANNELWISE)

    if type(backbone) is not nn.Sequential or not all(known(layer) for layer in backbone):
        return False
    if not all(p.requires_grad for p in backbone.parameters()) or len({m.training for m in backbone.modules()}) > 1:
        return False  # parts that are held
    vectors = len(shape) == 1
    for layer in backbone:
        vectors = vectors or isinstance(layer, nn.Flatten)
        if isinstance(layer, nn.Linear) and not vectors:
            return False  # it would act on the last axis of something larger
    if len(shape) != 3 and any(isinstance(layer, nn.Conv2d) for layer in backbone):
        return False
    weighty = [layer for layer in backbone if isinstance(layer, (nn.Conv2d, nn.Linear))]
    if len(set(weighty)) != len(weighty):
        return False  # one layer in two places has its weights under one name only
    # Dropout while all learners still see the same images would need an image for each.
    parting = next((layer for layer in backbone if isinstance(layer, (*_PARTING, nn.Dropout))), None)
    return not isinstance(parting, nn.Dropout)


@dataclass(frozen=True)
class Step:
    """A layer of the backbone, with what follows a convolution folded into it."""

    name: str
    layer: nn.Module
    site: DropoutSite | None = None  # of the dropout at this step
    number: int = 0  # its place among the sites
    relu: bool = False  # a convolution's own: bias, perhaps ReLU ...
    pool: nn.MaxPool2d | None = None  # ... and pooling, then the dropout of `site`


def plan_steps(backbone: nn.Sequential, sites: Sequence[DropoutSite], *, folds: bool) -> list[Step]:
    """Return the layers as steps; `folds`: ReLU, pooling and dropout behind a convolution become part of its step."""
    steps: list[Step] = []
    numbered = iter(enumerate(sites))
    for name, layer in used_layers(backbone):
        last = steps[-1] if steps else None
        behind = last if folds and last is not None and isinstance(last.layer, nn.Conv2d) else None
        if behind and isinstance(layer, nn.ReLU) and not behind.relu and not behind.pool:
            steps[-1] = replace(behind, relu=True)
        elif behind and isinstance(layer, nn.MaxPool2d) and _pools(layer) and not behind.pool:
            steps[-1] = replace(behind, pool=layer)
        elif isinstance(layer, nn.Dropout):
            number, site = next(numbered)
            if behind and behind.pool and behind.site is None:
                steps[-1] = replace(behind, site=site, number=number)
            else:
                steps.append(Step(name, layer, site, number))
        else:
            steps.append(Step(name, layer))
    return steps


def used_layers(backbone: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers by name, without dropout that keeps everything."""
    # Not named_children(), which leaves out a layer object when it comes a second time.
    return [(n, m) for n, m in backbone._modules.items() if m is not None and not _idle(m)]


class PlannedLayers:
    """The layers of an `nn.Sequential` as steps, and the random bytes of its dropout."""

    def __init__(
        self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int, *, folds: bool = False
    ) -> None:
        """`folds`: ReLU, pooling and dropout behind a convolution become part of its step."""
        self.learners = learners
        self.sites = dropout_sites([layer for _, layer in used_layers(backbone)], shape, learners)
        self.steps = plan_steps(backbone, self.sites, folds=folds)

    def noise_size(self, batch: int) -> int:
        """Return the number of random bytes that one run needs for one batch."""
        return noise_size(self.sites, batch)

    def side_by_side(self, noise: Tensor, batch: int) -> Tensor:
        """Return the bytes of several batches (G, n) as those of one batch of all their samples."""
        pieces = [piece.flatten() for piece in cut_noise(noise, self.sites, batch)]
        return torch.cat(pieces) if pieces else noise.new_empty(0)

    def bytes_of(self, noise: Tensor | None, batch: int) -> list[Tensor | None]:
        """Return the bytes of every dropout site."""
        return [None] * len(self.sites) if noise is None else [*cut_noise(noise, self.sites, batch)]


def _pools(layer: nn.MaxPool2d) -> bool:
    """Whether a layer is max-pooling over square windows, without padding."""
    square = isinstance(layer.kernel_size, int) and isinstance(layer.stride, int)
    return square and (layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices) == (0, 1, False, False)


def halves(pool: nn.MaxPool2d | None) -> bool:
    """Whether pooling is there and has windows of 2x2 side by side."""
    return pool is not None and (pool.kernel_size, pool.stride) == (2, 2)


def _idle(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Dropout) and round(layer.p * 256) == 0
