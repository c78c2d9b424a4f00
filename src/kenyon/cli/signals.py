"""Signals outside of training: SIGINT and SIGTERM end the process at once, with their exit codes.

During training they are handled in `kenyon.cli.stopping`. All other work may end at any moment, since files are
written atomically; so nothing is raised, which an import or a callback could swallow or print. Imports little: until
it is imported, Python itself handles signals.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 and the signal's number, as shells have it
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(BaseException):
    """SIGTERM, while the current work takes too long to wait for. Like KeyboardInterrupt, not an Exception."""


class Heard:
    """The exit code of the signal that was received."""

    code = INTERRUPTED


def leave_on_signals() -> None:
    """End the process on signals from now on. For the program, not for `import kenyon`."""
    atexit.register(_deaf)  # registered first, called last
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as for a command in the background of a script
            signal.signal(number, _leave)


@contextmanager
def interruptible() -> Iterator[Heard]:
    """Raise KeyboardInterrupt once for either signal inside the context: for work that reports at its end."""
    heard, before = Heard(), {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hear(number: int, frame: FrameType | None) -> None:
        restore()
        heard.code = 128 + number
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        restore()


def _leave(number: int, frame: FrameType | None) -> None:
    processes = sys.modules.get("multiprocessing.process")
    for child in processes.active_children() if processes else ():
        child.terminate()  # workers of a sweep, which save; a regular exit would end them too
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(sys.__stderr__.fileno(), b"\x1b[?25h")  # the cursor, which bars hide
    os._exit(128 + number)


def _deaf() -> None:
    """Ignore signals at exit. Python is about to restore the default handlers, which would kill it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
