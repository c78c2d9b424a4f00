"""The H-divergence between task distributions (Definition 1, S12)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError


def h_divergence(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """2 sup_h |P_1(I(h)) - P_2(I(h))| over finitely many hypotheses and samples; between 0 and 2.

    first is (H, N_1) and second (H, N_2): whether hypothesis h says 1 to sample n of either distribution.
    """
    one, two = _says(first, "first"), _says(second, "second")
    if len(one) != len(two):
        raise ConfigError(f"first and second must be of the same hypotheses, not of {len(one)} and {len(two)}.")
    return 2 * float(np.abs(one.mean(1) - two.mean(1)).max())


def _says(value: npt.ArrayLike, name: str) -> npt.NDArray[np.bool_]:
    found = np.asarray(value)
    if found.ndim != 2 or not found.size or not np.isin(found, (0, 1)).all():
        raise ConfigError(f"{name} must be an array (hypotheses, samples) of 0 and 1, with one of each at least.")
    return found.astype(np.bool_)
