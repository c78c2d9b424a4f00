"""Arguments of formulas: numbers within the range where the formula means something, or an error that names them."""

from __future__ import annotations

from math import isfinite

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError

Array = npt.NDArray[np.float64]
Numbers = npt.ArrayLike


def finite(name: str, value: Numbers) -> Array:
    try:
        found = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be a number or an array of numbers, not {value!r}.") from error
    if not np.isfinite(found).all():
        raise ConfigError(f"{name} must be finite, not {_first(found, ~np.isfinite(found))}.")
    return found


def positive(name: str, value: Numbers) -> Array:
    found = finite(name, value)
    if (found <= 0).any():
        raise ConfigError(f"{name} must be larger than 0, not {_first(found, found <= 0)}.")
    return found


def not_negative(name: str, value: Numbers) -> Array:
    found = finite(name, value)
    if (found < 0).any():
        raise ConfigError(f"{name} must be 0 or larger, not {_first(found, found < 0)}.")
    return found


def rate(name: str, value: Numbers) -> Array:
    """A forgetting rate, or an array of them."""
    found = finite(name, value)
    outside = (found < 0) | (found > 1)
    if outside.any():
        raise ConfigError(
            f"{name} must lie between 0 (nothing forgotten) and 1 (all forgotten), not {_first(found, outside)}."
        )
    return found


def confidence(name: str, value: float) -> float:
    """delta of a bound that holds with probability 1 - delta."""
    if not isfinite(value) or not 0 < value < 1:
        raise ConfigError(f"{name} must lie between 0 and 1, both left out, not {value}.")
    return float(value)


def count(name: str, value: float, least: int = 1) -> int:
    if not isfinite(value) or value != int(value) or value < least:
        raise ConfigError(f"{name} must be a whole number, {least} or larger, not {value}.")
    return int(value)


def number(name: str, value: float, *, above_zero: bool = True) -> float:
    found = (positive if above_zero else not_negative)(name, value)
    if found.ndim:
        raise ConfigError(f"{name} must be one number, not an array of shape {found.shape}.")
    return float(found)


def _first(found: Array, bad: npt.NDArray[np.bool_]) -> float:
    return float(found[bad].flat[0])
