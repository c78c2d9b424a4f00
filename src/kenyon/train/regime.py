"""The training regime of a benchmark, as data."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from kenyon.errors import ConfigError


@dataclass(frozen=True)
class Training:
    """The training regime of a benchmark. Defaults: CIFAR family (Supplementary Section 2.2)."""

    epochs: int = 100  # of every task, always all of them
    batch: int = 256
    rate: float = 1e-3  # Adam's learning rate at the start of every task
    patience: int = 5  # epochs without a better validation loss before the rate drops
    drop: float = 3.0  # what the rate is then divided by, with a new optimiser state
    validation: float = 0.1  # share of the training data held out

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("patience", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        for name in ("rate", "drop"):
            value = getattr(self, name)
            if not isfinite(value) or value <= 0:
                raise ConfigError(f"{name} must be a finite number above 0, not {value}.")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation is a share between 0 and 1, not {self.validation}.")
