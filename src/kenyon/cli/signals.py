"""Signals before and after a training: SIGINT and SIGTERM end the process at once, with their exit codes.

A training answers them itself while it lasts (`kenyon.cli.stopping`). Everything else that Kenyon does may end at any
moment, since files are there whole or not at all; so nothing is raised, which an import or a callback could swallow
or print. Imports little: what comes before it is the time in which Python itself answers.
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
    """SIGTERM, and what is under way takes too long to wait for. Like KeyboardInterrupt, no error to be handled."""


class Heard:
    """Which signal ended something."""

    code = INTERRUPTED


def leave_on_signals() -> None:
    """From now on, and until the interpreter is gone. For a process that is the program, not for `import kenyon`."""
    atexit.register(_deaf)  # the first to register is the last to be called
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as for a command in the background of a script
            signal.signal(number, _leave)


@contextmanager
def interruptible() -> Iterator[Heard]:
    """Inside, either signal raises KeyboardInterrupt, once: for work that tells what it has in the end."""
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
        child.terminate()  # workers of a sweep, which save what they have; a regular end would end them too
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        os.write(sys.__stderr__.fileno(), b"\x1b[?25h")  # the cursor, which bars hide
    os._exit(128 + number)


def _deaf() -> None:
    """Everything is done. Python is about to give the signals back to the system, and would be killed by one."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
