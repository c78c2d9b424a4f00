"""The choice of an executor: a list in order of preference, of which the first that supports a backbone is taken."""

from __future__ import annotations

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
    found = (kind.for_backbone(request) for kind in executors())
    return next(executor for executor in found if executor is not None)
