"""Any nn.Module, one learner after another through torch.func."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.frame import Frame
from kenyon.nets.parts import vectors
from kenyon.nets.steps import Params


class General:
    """Dropout of any kind draws from PyTorch's generator, seeded for run and step and put back afterwards."""

    capturable = False
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
        self.backbone, self.learners = backbone, learners
        self.constants, self.features = dict(constants or {}), features
        self.in_training = {part: part.training for part in backbone.modules()}
        self.by_batch = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in backbone.modules())

    def noise_size(self, batch: int) -> int:
        return 8

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        """`params` (K, ...): also running statistics, to which a batch in training is added in place."""
        from torch.func import functional_call

        if noise is not None and self.by_batch and len(images) < 2:
            raise ConfigError("nn.BatchNorm cannot learn from a batch of one sample. Choose a larger batch.")
        for part, training in self.in_training.items():
            part.training = training and noise is not None
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            if noise is not None:
                torch.manual_seed(int.from_bytes(bytes(noise[:7].tolist()), "little"))
            found = []
            each = {name: p.unbind() for name, p in params.items()}  # its backward is one stack
            for k in range(self.learners):
                mine = self.constants | {name: learners[k] for name, learners in each.items()}
                found.append(vectors(functional_call(self.backbone, mine, (images,)), len(images)))
        if self.features is not None and found[0].shape[1] != self.features:
            raise ConfigError(
                f"The backbone gave {self.features} features at first and {found[0].shape[1]} now. Its output must "
                "have one size."
            )
        return torch.stack(found)
