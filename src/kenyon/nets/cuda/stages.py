"""The convolutions of a backbone, each with how it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kenyon.nets.cuda.choices import choose_sharing, choose_tiling
from kenyon.nets.cuda.plan import Convolution, DenseTiling, Shape, Sharing, Tiling
from kenyon.nets.dropout import DropoutSite


@dataclass(frozen=True)
class Stage:
    """A convolution with how it is computed."""

    layer: Convolution
    site: DropoutSite | None
    tiling: Tiling | DenseTiling
    backward: Tiling | DenseTiling | None  # None: nobody needs the gradient of the images
    sharing: Sharing


def choose_stages(layers: Sequence[tuple[Convolution, DropoutSite | None]], teams: bool) -> list[Stage] | None:
    """None where one of the layers does not fit the kernels. `teams`: the device has products of four warps."""
    stages = []
    for layer, site in layers:
        shape = Shape.forward(layer)
        tiling = choose_tiling(shape, teams, layer.rows)
        sharing = choose_sharing(shape, layer.pooled, layer.rows)
        backward = None if layer.first else choose_tiling(Shape.backward(layer), teams)
        if tiling is None or sharing is None or (backward is None and not layer.first):
            return None
        stages.append(Stage(layer, site, tiling, backward, sharing))
    return stages


def multiplications(stages: Sequence[Stage]) -> int:
    """Of one run for an image, forwards: as many as a record of `weigh` has numbers, at every pixel."""
    return sum(s.sharing.record * s.layer.map**2 for s in stages)
