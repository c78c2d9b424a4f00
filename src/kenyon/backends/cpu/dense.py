"""Small dense networks on a CPU: all runs and learners at once, each layer one batched product.

In networks this small, the time is spent in calls, so each layer is called once for all. One thread computes: waking
others would take longer than the work, and the bits of a product then do not depend on the number of runs.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kenyon.backends.executor import Request
from kenyon.backends.layers import DropoutSite, DropoutStep, FlattenStep, LinearStep, Params, known_layers
from kenyon.backends.triton.stacked import Stacked
from kenyon.random import Noise

LARGEST = 1_000_000  # weights of a run; above, chunks of learners and samples in parallel are faster


class Dense(Stacked):
    """All runs and learners at once: small dense networks on a CPU."""

    all_runs = True
    small = True

    @classmethod
    def for_backbone(cls, request: Request) -> Dense | None:
        backbone, shape = request.backbone, request.shape
        if request.device.type != "cpu" or not known_layers(backbone, shape):
            return None
        assert isinstance(backbone, nn.Sequential)
        kinds = [kind for layer in backbone if (kind := type(layer)) in (nn.Conv2d, nn.Linear, nn.Flatten)]
        weights = sum(p.numel() for p in backbone.parameters()) * request.learners
        if weights > LARGEST or not kinds or not (len(shape) == 1 or kinds[0] is nn.Flatten):
            return None
        return cls(backbone, shape, request.learners)

    def forward(self, params: Params, images: Tensor, noise: Any, *, rows: Tensor | None = None) -> Tensor:
        """Take the parameters of one run or of all runs; if there are none, the samples tell which, by their axes."""
        linear = next((step for step in self.steps if type(step) is LinearStep), None)
        of_all = images.ndim > self.axes if linear is None else params[f"{linear.name}.weight"].ndim == 4
        return self._all_runs(params, images, noise) if of_all else super().forward(params, images, noise)

    def batches_at_once(self, batch: int, runs: int, room: int) -> int:
        return 1

    def _all_runs(self, params: Params, images: Tensor, noise: Noise | None) -> Tensor:
        """Map parameters (R, K, ...) and samples (R, B, *shape) to features (R, K, B, F)."""
        R, B = images.shape[:2]
        factors = None if noise is None else dropout_factors(self.sites, self.learners, noise, B, images.dtype)
        x = images.flatten(0, 1)  # (R * B, *shape)
        for step in self.steps[: self.flat]:
            x = step.layer(x)
        x = x.flatten(1).view(R, 1, B, -1).expand(R, self.learners, B, -1).flatten(0, 1)  # (R * K, B, F)
        for step in self.steps[self.flat :]:
            match step:
                case LinearStep():
                    w, bias = params[f"{step.name}.weight"].flatten(0, 1), params.get(f"{step.name}.bias")
                    wt = w.transpose(1, 2)
                    x = torch.bmm(x, wt) if bias is None else torch.baddbmm(bias.flatten(0, 1).unsqueeze(1), x, wt)
                case DropoutStep():
                    x = x if factors is None else x * factors[step.number]
                case FlattenStep():
                    pass  # samples are vectors already
                case _:
                    x = step.layer(x)
        return x.unflatten(0, (R, self.learners))


def dropout_factors(
    sites: tuple[DropoutSite, ...], learners: int, noise: Noise, batch: int, dtype: torch.dtype
) -> list[Tensor]:
    """Return the factors of the units of every site, the scale or 0: (R * K, B, F) each.

    Computed by NumPy, whose calls are cheaper.
    """
    K, sizes = learners, [batch * prod(site.shape) for site in sites]
    if not sites:
        return []
    thresholds, scales = _levels(sites, batch, np.float32 if dtype == torch.float32 else np.float64)
    values = (noise.bytes(sum(sizes)).numpy() >= thresholds) * scales
    factors, start = [], 0
    for site, size in zip(sites, sizes, strict=True):
        own = values[:, start : start + size].reshape(-1, batch, size // batch)[..., : K * site.channels]
        each = own.reshape(-1, batch, K, site.channels).swapaxes(1, 2).reshape(-1, batch, site.channels)
        factors.append(torch.from_numpy(each).to(dtype))
        start += size
    return factors


@lru_cache(maxsize=8)
def _levels(sites: tuple[DropoutSite, ...], batch: int, dtype: type) -> tuple[Any, Any]:
    """Return arrays of the threshold and of the scale of every random byte of a batch."""
    sizes = [batch * prod(site.shape) for site in sites]
    thresholds = np.repeat(np.array([site.threshold for site in sites], dtype=np.uint8), sizes)
    return thresholds, np.repeat(np.array([site.scale for site in sites], dtype=dtype), sizes)
