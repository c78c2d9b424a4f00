"""Arguments of unknown type as plain numbers: Python's and NumPy's types are taken, bools are not numbers."""

from __future__ import annotations

from functools import singledispatch
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch


@singledispatch
def as_integer(value: Any) -> int | None:
    """Return a whole number as an int; None for anything else."""
    return None


as_integer.register(Integral, int)


@singledispatch
def as_number(value: Any) -> Any:
    """Return a real number as it is, or that of an array or tensor with one element; None for anything else."""
    return None


@as_number.register(np.ndarray)
@as_number.register(torch.Tensor)
def _(value: Any) -> Any:
    try:
        return as_number(value.item())
    except (RuntimeError, ValueError):  # several elements, or a tensor without data
        return None


as_number.register(Real, lambda value: value)
for _bool in (bool, np.bool_):
    as_integer.register(_bool, lambda value: None)
    as_number.register(_bool, lambda value: None)
