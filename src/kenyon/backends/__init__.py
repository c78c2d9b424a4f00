"""Computing backbones on a device: layouts, layers, executors for CPU, PyTorch, Triton and CUDA, and optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kenyon.backends.executor import Executor, Request


def executors() -> tuple[type[Executor], ...]:
    """Return all executors in order of preference."""
    from kenyon.backends.cpu.dense import Dense
    from kenyon.backends.cpu.looped import Looped
    from kenyon.backends.cuda.tiled import Tiled
    from kenyon.backends.torch.module import General
    from kenyon.backends.triton.stacked import Stacked

    return Tiled, Dense, Looped, Stacked, General


def choose_executor(request: Request) -> Executor:
    """Return the first executor that supports the backbone on the device."""
    candidates = (kind.for_backbone(request) for kind in executors())
    return next(executor for executor in candidates if executor is not None)
