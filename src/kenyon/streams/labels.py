"""Labels of any kind as numbers from 0 on."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import DataError


def numbered(labels: Any, what: str = "labels") -> tuple[Tensor, tuple[str, ...]]:
    """(N,) int64, and the labels themselves in their order: numbers by size, strings by the alphabet."""
    found = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if found.ndim != 1:
        raise DataError(f"{what} must be one a sample, (N,), not of the shape {found.shape}.")
    if len(found) == 0:
        raise DataError(f"There are no {what}, and so no samples.")
    whole = found.dtype.kind in "iub" or (found.dtype == object and _all(found, (Integral, np.bool_)))
    strings = found.dtype.kind == "U" or (found.dtype == object and _all(found, str))
    if not strings and not whole:
        raise DataError(f"{what} must be integers or strings, not {_kind(found)}. Convert them first.")
    names, numbers = np.unique(found.astype(str) if strings else found, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)


def _all(labels: Any, kinds: type | tuple[type, ...]) -> bool:
    return all(isinstance(label, kinds) for label in labels)


def _kind(found: Any) -> str:
    if found.dtype != object:
        return str(found.dtype)
    return ", ".join(sorted({type(label).__name__ for label in found}))
