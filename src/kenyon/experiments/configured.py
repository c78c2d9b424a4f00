"""What images and games have in common before they are learned: a configuration that answers for itself.

Grids, fleets, states, folders, commands and sweeps ask it, and need not know what is learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kenyon.experiments.config import Architecture
from kenyon.experiments.kept import Kept


class Configured(Protocol):
    """Everything that decides the numbers of an experiment, except the seeds."""

    @property
    def benchmark(self) -> str: ...

    @property
    def method(self) -> str: ...

    @property
    def architecture(self) -> Architecture: ...

    @property
    def kept(self) -> type[Kept[Any, Any]]:
        """The results that its runs become."""
        ...

    @property
    def folder(self) -> Path:
        """Of its results, below OUT."""
        ...

    @property
    def structure(self) -> str:
        """Configurations that agree in it can train in one fleet."""
        ...

    @property
    def length(self) -> float:
        """Of one run, in epochs or whatever costs a like time."""
        ...

    @property
    def demand(self) -> tuple[str, str]:
        """What a run asks of a device's memory, besides its network, and how to ask for less."""
        ...

    @property
    def changes(self) -> tuple[list[str], dict[str, Any]]:
        """What differs from the published configuration: words for the command line, and settings."""
        ...

    def as_dict(self) -> dict[str, Any]: ...
