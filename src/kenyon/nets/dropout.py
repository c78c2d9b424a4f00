"""Dropout whose masks come from outside, so that every run has its own and all executions agree.

One byte decides one unit. A probability is therefore rounded to a multiple of 1/256 (0.25 and 0.5 are exact) and
survivors are scaled by the rounded value, so that expectations stay right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.shapes import shapes_through

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
