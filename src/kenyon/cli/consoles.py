"""Where commands speak: words as they are, for labels and paths may have brackets, and no numbers coloured."""

from __future__ import annotations

from rich.console import Console


def stdout() -> Console:
    """For what was asked for."""
    return Console(markup=False, highlight=False)


def stderr(quiet: bool = False) -> Console:
    """For what is told on the way, and for everything where standard output is for a program."""
    return Console(stderr=True, markup=False, highlight=False, quiet=quiet)
