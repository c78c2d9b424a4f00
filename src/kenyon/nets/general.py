"""Any nn.Module, one learner after another through torch.func."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.frame import Frame
from kenyon.nets.steps import Params


class General:
    """Any module without buffers. Dropout inside it draws from PyTorch's generator, seeded for run and step."""

    capturable = False
    threads = False  # there is one generator for all
    input_channels: int | None = None
    frame: Frame | None = None

    def __init__(self, backbone: nn.Module, learners: int) -> None:
        buffers = [name for name, _ in backbone.named_buffers()]
        if buffers:
            raise ConfigError(
                f"The backbone keeps running statistics ({', '.join(buffers[:3])}), which would leak between tasks. "
                "Use layers without buffers, such as GroupNorm instead of BatchNorm."
            )
        self.backbone, self.learners = backbone, learners

    def noise_size(self, batch: int) -> int:
        return 8

    def __call__(self, params: Params, images: Tensor, noise: Tensor | None) -> Tensor:
        from torch.func import functional_call

        self.backbone.train(noise is not None)
        devices = [images.device] if images.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            if noise is not None:
                torch.manual_seed(int.from_bytes(bytes(noise[:7].tolist()), "little"))
            return torch.stack(
                [
                    functional_call(self.backbone, {n: p[k] for n, p in params.items()}, (images,))
                    for k in range(self.learners)
                ]
            )
