"""Any nn.Module, one learner after another through torch.func.

A module that draws random numbers in training needs PyTorch's generator seeded for every step, from the host. One
that draws none, as its first step shows, may go into a CUDA graph, and then costs what its kernels cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.frame import Frame
from kenyon.nets.lent import Lent
from kenyon.nets.parts import vectors
from kenyon.nets.steps import Params


class General:
    """Dropout of any kind draws from PyTorch's generator, seeded for run and step and put back afterwards."""

    threads = False  # there is one generator for all
    input_channels: int | None = None
    frame: Frame | None = None

    def __init__(
        self,
        backbone: nn.Module,
        learners: int,
        constants: Mapping[str, Tensor] | None = None,
        features: int | None = None,
    ) -> None:
        """`backbone` is in the mode of training. `constants`: what all learners share; `features`: how many there
        should be, None for any number.
        """
        self.backbone, self.learners, self.lent = backbone, learners, Lent(backbone)
        self.constants, self.features = dict(constants or {}), features
        self.in_training = {part: part.training for part in backbone.modules()}
        self.by_batch = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in backbone.modules())
        self.draws: bool | None = None  # whether training draws random numbers; None until a step has been seen
        self.refused = False

    @property
    def capturable(self) -> bool:
        """Statistics of batches have not been seen in a CUDA graph yet, so modules that keep them run as they are."""
        return self.draws is False and not self.by_batch and not self.refused

    def refuse_capture(self) -> bool:
        """What the module does may depend on values, which only the host can look at."""
        self.refused = True
        return True

    def noise_size(self, batch: int) -> int:
        return 8

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        """`params` (K, ...): also running statistics, to which a batch in training is added in place."""
        if noise is not None and self.by_batch and len(images) < 2:
            raise ConfigError("nn.BatchNorm cannot learn from a batch of one sample. Choose a larger batch.")
        for part, training in self.in_training.items():
            part.training = training and noise is not None
        if self.capturable and images.is_cuda:
            found = self._each(params, images)  # perhaps while it is captured: nothing may wait for the device
        else:
            found = self._seeded(params, images, noise)
        if self.features is not None and found[0].shape[1] != self.features:
            raise ConfigError(
                f"The backbone gave {self.features} features at first and {found[0].shape[1]} now. Its output must "
                "have one size."
            )
        return torch.stack(found)

    def _each(self, params: Params, images: Tensor) -> list[Tensor]:
        each = {name: p.unbind() for name, p in params.items()}  # its backward is one stack
        found = []
        for k in range(self.learners):
            mine = self.constants | {name: learners[k] for name, learners in each.items()}
            found.append(vectors(self.lent(mine, images), len(images)))
        return found

    def _seeded(self, params: Params, images: Tensor, noise: Tensor | None) -> list[Tensor]:
        devices = [images.device] if images.is_cuda else []
        with torch.random.fork_rng(devices=devices):
            if noise is None:
                return self._each(params, images)
            torch.manual_seed(int.from_bytes(bytes(noise[:7].tolist()), "little"))
            before = _generators(devices) if self.draws is None else None
            found = self._each(params, images)
            if before is not None:
                pairs = zip(before, _generators(devices), strict=True)
                self.draws = not all(torch.equal(one, other) for one, other in pairs)
        return found


def _generators(devices: Sequence[torch.device]) -> list[Tensor]:
    """The states of PyTorch's generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
