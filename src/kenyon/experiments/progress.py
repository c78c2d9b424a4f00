"""What a run tells while it works; the command line draws it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kenyon.errors import expected
from kenyon.experiments.grid import AnyCell
from kenyon.train import Trainer


class Progress(Protocol):
    """What a plan's execution tells while it runs; the command line draws bars from it."""

    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None:
        """These runs begin to train together, with so many of their epochs behind them: see `Trainer.done`."""

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None:
        """These runs did not fit into the device's memory; they go on, at most so many together."""


class Silent:
    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None: ...

    def epoch_done(self, trainer: Trainer) -> None: ...

    def fleet_ends(self, seconds: float) -> None: ...

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None: ...


def check_progress(progress: Any) -> None:
    """Before anything is trained: that whoever is to be told can be."""
    told = [name for name in vars(Silent) if not name.startswith("_")]
    if not all(callable(getattr(progress, name, None)) for name in told):
        raise expected("progress", f"an object with the methods {', '.join(told)}", progress)
