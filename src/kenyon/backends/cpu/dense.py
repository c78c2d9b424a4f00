"""Small dense networks on a CPU: all runs and learners at once, each layer one batched product.

In networks this small, what a layer costs is being called; so it is called once for all. One thread computes: waking
others would take longer than the work, and a product's bits then do not depend on how many runs there are.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kenyon.backends.executor import Request
from kenyon.backends.layers import DropoutSite, Params, known_layers
from kenyon.backends.triton.stacked import Stacked
from kenyon.random import Noise

LARGEST = 1_000_000  # weights of a run; beyond, its learners and samples had better go side by side


class Dense(Stacked):
    all_runs = True
    small = True

    @classmethod
    def for_backbone(cls, request: Request) -> Dense | None:
        backbone, shape = request.backbone, request.shape
        if request.device.type != "cpu" or not known_layers(backbone, shape):
            return None
        assert isinstance(backbone, nn.Sequential)
        shapes = [layer for layer in backbone if isinstance(layer, (nn.Conv2d, nn.Linear, nn.Flatten))]
        weights = sum(p.numel() for p in backbone.parameters()) * request.learners
        if weights > LARGEST or not shapes or not (len(shape) == 1 or isinstance(shapes[0], nn.Flatten)):
            return None
        return cls(backbone, shape, request.learners)

    def forward(self, params: Params, images: Tensor, noise: Any, *, rows: Tensor | None = None) -> Tensor:
        """Parameters of one run or of all; a Flatten alone has none, and then samples have one axis more."""
        linear = next((step for step in self.steps if isinstance(step.layer, nn.Linear)), None)
        of_all = images.ndim > self.axes if linear is None else params[f"{linear.name}.weight"].ndim == 4
        return self._all_runs(params, images, noise) if of_all else super().forward(params, images, noise)

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        return 1

    def _all_runs(self, params: Params, images: Tensor, noise: Noise | None) -> Tensor:
        """Parameters (R, K, ...), samples (R, B, *shape) -> features (R, K, B, F)."""
        R, B = images.shape[:2]
        keep = None if noise is None else kept_of_all(self.sites, self.learners, noise, B, images.dtype)
        x = images.flatten(0, 1)  # (R * B, *shape) while all learners see the same, then (R * K, B, F)
        shared = True
        for step in self.steps:
            if shared and isinstance(step.layer, (nn.Flatten, nn.Linear)):
                x = x.flatten(1).view(R, 1, B, -1).expand(R, self.learners, B, -1).flatten(0, 1)
                shared = False
            if isinstance(step.layer, nn.Flatten):
                continue  # nothing is left to flatten
            if isinstance(step.layer, nn.Linear):
                w, bias = params[f"{step.name}.weight"].flatten(0, 1), params.get(f"{step.name}.bias")
                wt = w.transpose(1, 2)
                x = torch.bmm(x, wt) if bias is None else torch.baddbmm(bias.flatten(0, 1).unsqueeze(1), x, wt)
            elif step.site is None:
                x = step.layer(x)
            elif keep is not None:
                x = x * keep[step.number]
        return x.unflatten(0, (R, self.learners))


def kept_of_all(
    sites: tuple[DropoutSite, ...], learners: int, noise: Noise, batch: int, dtype: torch.dtype
) -> list[Tensor]:
    """What the units of every site are multiplied by, the scale or 0: (R * K, B, F) each.

    In NumPy, whose calls are the cheaper ones.
    """
    K, sizes = learners, [batch * prod(site.shape) for site in sites]
    if not sites:
        return []
    thresholds, scales = _levels(sites, batch, np.float32 if dtype == torch.float32 else np.float64)
    factors = (noise.bytes(sum(sizes)).numpy() >= thresholds) * scales
    found, start = [], 0
    for site, size in zip(sites, sizes, strict=True):
        mine = factors[:, start : start + size].reshape(-1, batch, size // batch)[..., : K * site.channels]
        each = mine.reshape(-1, batch, K, site.channels).swapaxes(1, 2).reshape(-1, batch, site.channels)
        found.append(torch.from_numpy(each).to(dtype))
        start += size
    return found


@lru_cache(maxsize=8)
def _levels(sites: tuple[DropoutSite, ...], batch: int, dtype: type) -> tuple[Any, Any]:
    """The threshold and the scale of every random byte of a batch, as arrays."""
    sizes = [batch * prod(site.shape) for site in sites]
    thresholds = np.repeat(np.array([site.threshold for site in sites], dtype=np.uint8), sizes)
    return thresholds, np.repeat(np.array([site.scale for site in sites], dtype=dtype), sizes)
