"""Training that is shown, and that stops when it is asked to: of images, games and sweeps of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from kenyon.cli.progress import Decoding, RunProgress
from kenyon.cli.stopping import StopAsked, stoppable
from kenyon.utils.progress import reporting_to


@contextmanager
def watched(told: Console, moment: str = "epoch") -> Iterator[tuple[RunProgress, StopAsked]]:
    """Training that is shown, and stops when asked to: what is done is saved, and the program ends."""
    with (
        stoppable(told, moment) as stopping,
        RunProgress(told, lambda: stopping.terminated) as progress,
        reporting_to(Decoding(told, progress.bars)),
    ):
        yield progress, stopping
