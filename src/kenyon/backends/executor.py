"""How K learners of one backbone are computed. One definition, several executions, equal results.

    looped   every learner and a few samples at a time, side by side on the cores of a CPU (see `apart`)
    stacked  all learners at once, for a GPU
    general  any nn.Module, one learner after another
    dense    all runs at once, for small dense networks on a CPU: see `dense`
    tiled    all runs at once by our own kernels, for the networks and GPUs that it knows: see `tiled`

Each of the first three maps (parameters of one run with a leading learner axis, samples (B, *shape), noise) to
features (K, B, F), in the type of the parameters.
`noise` holds the random bytes of this run and step for dropout; None means evaluation.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from kenyon.backends.cpu.looped import Looped
from kenyon.backends.layers import Frame, Params, Sequential, Step, known_layers
from kenyon.backends.torch.module import General
from kenyon.backends.triton.stacked import Stacked

__all__ = [
    "Execution",
    "General",
    "Looped",
    "Params",
    "Sequential",
    "Stacked",
    "Step",
    "choose_execution",
    "known_layers",
]


class Capturable(Protocol):
    """Tells whether a CUDA graph may hold it."""

    @property
    def capturable(self) -> bool: ...

    def refuse_capture(self) -> bool:
        """A capture failed. True: from now on it is not capturable, and runs as it is; False: that is an error."""


class Execution(Capturable, Protocol):
    threads: bool  # whether a CPU may compute several runs at the same time
    input_channels: int | None  # images should come with this many channels, the last ones empty; None: as they are
    frame: Frame | None  # into which images that are read in place should be laid

    def noise_size(self, batch: int) -> int:
        """How many random bytes one run needs for one batch."""

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor: ...


def choose_execution(backbone: nn.Module, shape: tuple[int, ...], learners: int, device: torch.device) -> Execution:
    if not known_layers(backbone, shape):
        return General(backbone, learners)
    assert isinstance(backbone, nn.Sequential)
    if device.type == "cpu":
        return Looped(backbone, shape, learners)
    stacked = Stacked(backbone, shape, learners)
    if device.type == "cuda" and isinstance(backbone[0], nn.Conv2d):
        stacked.input_channels = -(-shape[0] // 8) * 8  # 16 bytes a pixel in bfloat16
    return stacked
