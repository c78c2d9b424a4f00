"""How long work on data tells of itself without knowing who listens.

A source is read deep inside an experiment. Whoever starts that (the command line, a notebook) may listen:

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
        """So much of something is done. The last call has done == total."""
        ...

    def notice(self, text: str) -> None:
        """Something the user should know, and need not act on."""
        ...


class Quiet:
    """Where nobody listens: notices become Python warnings."""

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        warnings.warn(text, stacklevel=3)


_reporter: ContextVar[Reporter] = ContextVar("reporter")


def reporter() -> Reporter:
    return _reporter.get(Quiet())


@contextmanager
def reporting_to(listener: Reporter) -> Iterator[None]:
    token = _reporter.set(listener)
    try:
        yield
    finally:
        _reporter.reset(token)
