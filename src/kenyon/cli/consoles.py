"""Consoles of the commands: text without markup, highlighting or control characters.

Labels and paths have brackets, and names from files may contain sequences that a terminal interprets. All output
passes through here: consoles replace control characters by signs, and streams let only pass what consoles write for
styles and bars.
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
        """Replace control characters in every piece of text, also inside tables and bars."""
        if isinstance(renderable, str):
            renderable = printable(renderable, lines=True)
        elif isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain, lines=True)
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, lines=True), segment.style)


def stdout() -> PlainConsole:
    """Return the console for results."""
    return PlainConsole()


def stderr(quiet: bool = False) -> PlainConsole:
    """Return the console for notes and progress, and for all text where standard output is for a program."""
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
    """Standard output cannot be written to."""


@contextlib.contextmanager
def speaking() -> Iterator[None]:
    """Guard the standard streams of a program: characters that they cannot encode become question marks, a full
    standard output is one message, and errors of standard error are ignored.
    """
    before = sys.stdout, sys.stderr
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files may not be valid text in any encoding.
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


# Styles and cursor movements that Rich writes (group 1), and every other control character.
_FOREIGN = re.compile(rf"(\x1b\[[0-9;]*m|\x1b\[1A|\x1b\[2K|\x1b\[\?25[hl]|\r(?=\x1b\[|\r?\n))|[{CONTROLS}]")


class _Stream:
    """A stream that hands errors to `failed` and replaces control characters other than those of styles and bars."""

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
        """Redirect the stream to nowhere: Python would try to flush it again at exit, and fail again."""
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)
        self._failed(error)


def _full(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):  # the reader has ended, as in `| head`
        raise error
    raise OutputError(
        f"Standard output cannot be written to: {error.strerror}. What was computed is saved; `kenyon show` prints "
        "it again."
    ) from error


def _ignored(error: OSError) -> None:
    """Ignore the error: training continues without its messages."""


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
