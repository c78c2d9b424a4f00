"""A backbone as a list of steps, as every execution but the general one sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from kenyon.nets.dropout import DropoutSite, cut_noise, dropout_sites, noise_size
from kenyon.nets.frame import Frame

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


class Sequential:
    """What looped and stacked execution share: the layers by name, and where dropout acts."""

    capturable = True
    threads = True
    input_channels: int | None = None
    frame: Frame | None = None

    def __init__(
        self, backbone: nn.Sequential, shape: tuple[int, ...], learners: int, *, folds: bool = False
    ) -> None:
        """`folds`: whether ReLU, pooling and dropout behind a convolution become part of it."""
        # Not named_children(), which leaves out a layer object when it comes a second time.
        layers = [(n, m) for n, m in backbone._modules.items() if m is not None and not _idle(m)]
        self.learners = learners
        self.sites = dropout_sites([m for _, m in layers], shape, learners)
        self.steps = self._plan(layers, folds)

    def refuse_capture(self) -> bool:
        """Nothing here depends on values: the reason is elsewhere, and must be seen."""
        return False

    def _plan(self, layers: list[tuple[str, nn.Module]], folds: bool) -> list[Step]:
        steps: list[Step] = []
        sites = iter(enumerate(self.sites))
        for name, layer in layers:
            last = steps[-1] if steps else None
            behind = last if folds and last is not None and isinstance(last.layer, nn.Conv2d) else None
            if behind and isinstance(layer, nn.ReLU) and not behind.relu and not behind.pool:
                steps[-1] = replace(behind, relu=True)
            elif behind and isinstance(layer, nn.MaxPool2d) and _pools(layer) and not behind.pool:
                steps[-1] = replace(behind, pool=layer)
            elif isinstance(layer, nn.Dropout):
                number, site = next(sites)
                if behind and behind.pool and behind.site is None:
                    steps[-1] = replace(behind, site=site, number=number)
                else:
                    steps.append(Step(name, layer, site, number))
            else:
                steps.append(Step(name, layer))
        return steps

    def noise_size(self, batch: int) -> int:
        return noise_size(self.sites, batch)

    def side_by_side(self, noise: Tensor, batch: int) -> Tensor:
        """The bytes of several batches (G, n) as those of one batch of all their samples."""
        pieces = [piece.flatten() for piece in cut_noise(noise, self.sites, batch)]
        return torch.cat(pieces) if pieces else noise.new_empty(0)

    def bytes_of(self, noise: Tensor | None, batch: int) -> list[Tensor | None]:
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
