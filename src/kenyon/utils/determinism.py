"""Numbers that do not depend on how many runs train together, also on a GPU: with --deterministic.

A library chooses its algorithm, and with it the order of its sums, by the number of matrices or rows it is given.
Given those of one run at a time it always chooses the same.

PyTorch's deterministic algorithms, for a GPU whose numbers shall repeat bit for bit.

On a CPU the numbers repeat anyway. On a GPU most do: Kenyon's own kernels add in a fixed order. What is left are
PyTorch's: cuDNN picks the fastest convolution by trying, and some sums are added in whatever order threads finish.
What depends on the number of runs that train together, `per_run` divides run by run meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.utils.threads import SharedSetting

USUAL_RUNS = 5  # as many as sums are divided for, however many there are


def is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def per_run(function: Callable[..., Tensor], rows: int, *operands: Tensor) -> Tensor:
    """The function of operands (R * rows, ...), all at once, or where numbers are to be steady run by run."""
    if not is_deterministic() or len(operands[0]) == rows:
        return function(*operands)
    parts = zip(*(operand.split(rows) for operand in operands), strict=True)
    return torch.cat([function(*part) for part in parts])


def _ask() -> Callable[[], None]:
    # Read when cuBLAS is first used: two work spaces of fixed size, so that streams do not share one.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    asked, warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False

    def put_back() -> None:
        torch.use_deterministic_algorithms(asked, warn_only=warned)
        cudnn.deterministic, cudnn.benchmark = before

    return put_back


_asked = SharedSetting(_ask)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """While this lasts, only algorithms that repeat; slower. Without being wanted it changes nothing."""
    if not wanted:
        yield
        return
    try:
        with _asked:
            yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        first = str(error).splitlines()[0]
        raise ConfigError(f"PyTorch cannot do this with --deterministic: {first} Leave the option out.") from error
