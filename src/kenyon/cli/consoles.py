"""Where commands speak: words as they are, for labels and paths may have brackets, and no numbers coloured.

Names come from files, and may hold sequences that a terminal obeys. All output goes through here: consoles show
control characters as signs, and streams let nothing through but what consoles write to style text and move bars.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from kenyon.errors import KenyonError
from kenyon.utils.text import CONTROLS, REPLACEMENT, printable


class PlainConsole(Console):
    """A console that takes text as it is: no markup, no numbers coloured, no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Every piece of text comes through here, also those inside of tables and bars."""
        if isinstance(renderable, str):
            renderable = printable(renderable, lines=True)
        elif isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain, lines=True)
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, lines=True), segment.style)


def stdout() -> PlainConsole:
    """For what was asked for."""
    return PlainConsole()


def stderr(quiet: bool = False) -> PlainConsole:
    """For what is told on the way, and for everything where standard output is for a program."""
    return PlainConsole(stderr=True, quiet=quiet)


def tell(text: str) -> None:
    """Print lines as they are, however long."""
    stdout().print(text, soft_wrap=True)


def indented(error: BaseException) -> str:
    """Return the message of an error, lines after the first indented: no name makes one look like a message."""
    return str(error).replace("\n", "\n  ")


def tell_json(body: Any) -> None:
    """Print one JSON object in one line."""
    print(json.dumps(body, allow_nan=False).replace("\x7f", "\\u007f"))


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


# What Rich writes: styles, and what bars move by. Of every other control character, group 1 is missing.
_FOREIGN = re.compile(rf"(\x1b\[[0-9;]*m|\x1b\[1A|\x1b\[2K|\x1b\[\?25[hl]|\r(?=\x1b\[|\r?\n))|[{CONTROLS}]")


class _Stream:
    """A stream whose errors are handed to `failed`, and which lets through what moves no more than bars do."""

    def __init__(self, stream: IO[str], failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        try:
            self._stream.write(_FOREIGN.sub(lambda found: found[1] or REPLACEMENT, text))
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
