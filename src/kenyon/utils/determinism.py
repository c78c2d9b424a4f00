"""Deterministic and batch-invariant computation on a GPU: what `--deterministic` sets.

On a CPU numbers repeat anyway. On a GPU most do: Kenyon's own kernels add in a fixed order. PyTorch's do not always:
cuDNN picks the fastest convolution by trying, and some sums are added in the order in which threads finish.
`deterministic` asks PyTorch for the algorithms that repeat.

Libraries also choose an algorithm, and with it the order of its sums, by the number of matrices or rows in a call.
While `deterministic` lasts, `per_run` therefore calls them with those of one run at a time, so that the numbers of a
run do not depend on how many runs train together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.utils.threads import SharedSetting

USUAL_RUNS = 5  # kernels divide their sums as for this many runs, however many there are


def is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def per_run(function: Callable[..., Tensor], rows: int, *operands: Tensor) -> Tensor:
    """Apply a function to operands (R * rows, ...): in one call, or run by run while `deterministic` lasts."""
    if not is_deterministic() or len(operands[0]) == rows:
        return function(*operands)
    parts = zip(*(operand.split(rows) for operand in operands), strict=True)
    return torch.cat([function(*part) for part in parts])


def _enable() -> Callable[[], None]:
    # Read when cuBLAS is first used: two work spaces of fixed size, so that streams do not share one.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    cudnn_before = cudnn.deterministic, cudnn.benchmark
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False

    def restore() -> None:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = cudnn_before

    return restore


_deterministic_algorithms = SharedSetting(_enable)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms only, which are slower; changes nothing unless `wanted`."""
    if not wanted:
        yield
        return
    try:
        with _deterministic_algorithms:
            yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        first = str(error).splitlines()[0]
        raise ConfigError(f"PyTorch cannot do this with --deterministic: {first} Leave the option out.") from error
