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
    if found.dtype == object and all(isinstance(label, Integral) for label in found):
        found = np.array(found.tolist())
    strings = found.dtype.kind == "U" or (found.dtype == object and all(isinstance(label, str) for label in found))
    if not strings and found.dtype.kind not in "iub":
        raise DataError(f"{what} must be integers or strings, not {_kind(found)}. Convert them first.")
    names, numbers = np.unique(found.astype(str) if strings else found.astype(np.int64), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)


def _kind(found: Any) -> str:
    if found.dtype != object:
        return str(found.dtype)
    return ", ".join(sorted({type(label).__name__ for label in found}))
