"""Where commands speak: words as they are, for labels and paths may have brackets, and no numbers coloured."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

from rich.console import Console

from kenyon.errors import KenyonError


def stdout() -> Console:
    """For what was asked for."""
    return Console(markup=False, highlight=False)


def stderr(quiet: bool = False) -> Console:
    """For what is told on the way, and for everything where standard output is for a program."""
    return Console(stderr=True, markup=False, highlight=False, quiet=quiet)


class OutputError(KenyonError):
    """Standard output that cannot be written to."""


@contextlib.contextmanager
def speaking() -> Iterator[None]:
    """A program that speaks whatever its streams are like. Signs that they do not have become question marks; that
    standard output is full is told in one sentence; and what is told on the way never stops a training.
    """
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may be no text at all, whatever the encoding.
        sys.stdout.reconfigure(errors="backslashreplace" if "utf" in sys.stdout.encoding.lower() else "replace")
    sys.stdout, sys.stderr = (
        stream and _Stream(stream, failed) for stream, failed in zip(before, (_full, _ignored), strict=True)
    )
    try:
        try:
            yield
        except SystemExit:
            _flush()
            raise
        _flush()
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A stream whose errors are handed to `failed`."""

    def __init__(self, stream: IO[str], failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        """From here on nothing is written: Python would try once more at the end, and fail again."""
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)
        self._failed(error)


def _full(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):  # who reads has read enough, as in `| head`
        raise error
    raise OutputError(
        f"Standard output cannot be written to: {error.strerror}. What was computed is saved; `kenyon show` tells it "
        "again."
    ) from error


def _ignored(error: OSError) -> None:
    """Nobody listens, and that is no reason to stop."""


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
