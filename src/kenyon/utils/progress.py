"""Progress and notices of work deep inside a call, without knowing who displays them.

A source is read deep inside an experiment. The caller that starts it (the command line, a notebook) may listen:

    with reporting_to(my_reporter):
        source.load(...)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Reporter(Protocol):
    def progress(self, what: str, done: int, total: int) -> None:
        """Show progress. The last call has done == total."""
        ...

    def notice(self, text: str) -> None:
        """Show a message that needs no action."""
        ...


class Quiet:
    """The default reporter: no progress, and notices become Python warnings."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        warnings.warn(text, stacklevel=3)


_reporter: ContextVar[Reporter] = ContextVar("reporter")


def reporter() -> Reporter:
    """Return the reporter of the current context."""
    return _reporter.get(Quiet())


@contextmanager
def reporting_to(listener: Reporter) -> Iterator[None]:
    """Send progress and notices of everything called inside to a reporter."""
    token = _reporter.set(listener)
    try:
        yield
    finally:
        _reporter.reset(token)
