"""Any nn.Module, one learner after another through torch.func.

A module that draws random numbers in training does so from generators that the host seeds for every step. One that
draws none, as its first step shows, may go into a CUDA graph, and then costs what its kernels cost.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.frame import Frame
from kenyon.nets.generators import UserCode
from kenyon.nets.lent import Lent
from kenyon.nets.parts import rebuilt, vectors
from kenyon.nets.steps import Params

# Of a module that draws in tests too. With it an untouched global generator of PyTorch begins.
TEST_SEED = 67280421310721


BACKWARD = 2**56  # what seeds of the backward pass are larger by


def _seed(noise: Tensor | None) -> int:
    return TEST_SEED if noise is None else int.from_bytes(bytes(noise[:7].tolist()), "little")


class General:
    """Dropout of any kind draws from generators of its own, seeded for run and step."""

    threads = False  # cores share the operations of one run
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
        self.by_batch = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in backbone.modules())
        self.code = UserCode("The backbone")
        self.refused = False
        self.of_thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "of_thread"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, of_thread=threading.local())

    @property
    def draws(self) -> bool | None:
        """Whether training draws random numbers; None until a step has been seen."""
        return self.code.draws

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
        lent = self._module(training=noise is not None)
        if self.capturable and images.is_cuda:
            found = self._each(lent, params, images)  # perhaps while it is captured: nothing may wait for the device
        else:
            found = self._seeded(lent, params, images, noise)
        if self.features is not None and found[0].shape[1] != self.features:
            raise ConfigError(
                f"The backbone gave {self.features} features at first and {found[0].shape[1]} now. Its output must "
                "have one size."
            )
        return torch.stack(found)

    def _module(self, *, training: bool) -> Lent:
        """The backbone in this mode: a copy for each thread, since tensors are put into it while it computes."""
        here = self.of_thread
        if not hasattr(here, "lent"):
            module = rebuilt(self.backbone, lambda _, t: torch.empty_like(t))
            here.lent, here.in_training = Lent(module), {part: part.training for part in module.modules()}
        for part, learns in here.in_training.items():
            part.training = learns and training
        return here.lent

    def _each(self, lent: Lent, params: Params, images: Tensor) -> list[Tensor]:
        each = {name: p.unbind() for name, p in params.items()}  # its backward is one stack
        found = []
        for k in range(self.learners):
            mine = self.constants | {name: learners[k] for name, learners in each.items()}
            found.append(vectors(lent(mine, images), len(images)))
        return found

    def backward(self, noise: Tensor | None) -> AbstractContextManager[object]:
        """To be entered while gradients are computed, in which parts may be computed again (torch.utils.checkpoint)
        or draw for the first time. A GPU's are computed by threads of PyTorch's.
        """
        if noise is None or noise.is_cuda:
            return nullcontext()
        return self.code.generators(lambda: _seed(noise) + BACKWARD)

    def _seeded(self, lent: Lent, params: Params, images: Tensor, noise: Tensor | None) -> list[Tensor]:
        devices = [images.device] if images.is_cuda else []
        seed = partial(_seed, noise)
        if noise is None or self.code.draws is not None:
            with self.code.generators(seed, devices):
                return self._each(lent, params, images)
        before = [(p, p.clone()) for p in params.values() if not p.requires_grad]  # running statistics among them

        def attempt() -> list[Tensor]:
            for p, value in before:
                p.copy_(value)
            return self._each(lent, params, images)

        return self.code.watched(attempt, list, seed, *devices)
