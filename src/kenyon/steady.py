"""Numbers that do not depend on how many runs train together, also on a GPU: with --deterministic.

A library chooses its algorithm, and with it the order of its sums, by the number of matrices or rows it is given.
Given those of one run at a time it always chooses the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

USUAL_RUNS = 5  # as many as sums are divided for, however many there are


def is_steady() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def of_each_run(function: Callable[..., Tensor], rows: int, *operands: Tensor) -> Tensor:
    """The function of operands (R * rows, ...), all at once, or where numbers are to be steady run by run."""
    if not is_steady() or len(operands[0]) == rows:
        return function(*operands)
    parts = zip(*(operand.split(rows) for operand in operands), strict=True)
    return torch.cat([function(*part) for part in parts])
