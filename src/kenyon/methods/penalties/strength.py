"""Settings of penalties. A strength is one number for all runs, or a tensor (R,) where runs differ."""

from __future__ import annotations

from functools import lru_cache
from numbers import Real
from typing import Any, get_args

import torch
from torch import Tensor

from kenyon.errors import ConfigError, shown

LARGEST = float(torch.finfo(torch.float32).max)
Strength = float | Tensor  # one for all runs, or (R,)


def strength_of(strength: Strength, run: int | slice) -> float | Tensor:
    """Return the strength of one run, or those of a slice."""
    return strength[run] if isinstance(strength, Tensor) else strength


def per_run(strength: Strength, like: Tensor, factor: float = 1.0) -> Tensor:
    """Return a strength as (R,), times a factor."""
    if isinstance(strength, Tensor):
        return strength.to(like) * factor
    return _constant(strength * factor, len(like), like.device, like.dtype)


@lru_cache(maxsize=64)
def _constant(value: float, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Cached, since every step needs it."""
    return torch.full((size,), value, device=device, dtype=dtype)


def check_strength(name: str, strength: Strength) -> None:
    """Refuse a strength that is not a finite number, 0 or larger."""
    if not isinstance(strength, (float, Real, Tensor)):
        raise ConfigError(f"{name} must be a finite number, 0 or larger, not {shown(strength)}.")
    if not isinstance(strength, Tensor) and strength > LARGEST:
        raise ConfigError(
            f"{name} must be a finite number, 0 or larger and at most {LARGEST:.2g} (float32's), not "
            f"{shown(strength)}."
        )
    values = torch.as_tensor(strength, dtype=torch.float32)  # 1e39 is infinite in float32
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ConfigError(f"{name} must be a finite number, 0 or larger, not {shown(strength)}.")


def check_word(name: str, value: str, words: Any) -> None:
    """Refuse a value that is not among the words of a Literal."""
    known = get_args(words)
    if value not in known:
        listed = " or ".join(known) if len(known) == 2 else ", ".join(known)
        raise ConfigError(f"{name} must be {listed}, not '{value}'.")
