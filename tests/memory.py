"""The memory that a piece of work takes, beyond what was taken before it."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PERIOD = 0.001


@dataclass
class Used:
    mib: float = 0.0  # at most at once
    left: float = 0.0  # when it is over, before the garbage collector runs


def anonymous() -> float:
    """Memory of this process that no file stands behind, in MiB. Pages of a memory-mapped file are none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 2**10
    raise OSError("this system does not say how much anonymous memory a process has")


@contextmanager
def peak() -> Iterator[Used]:
    """Looked at all the time by a thread, since the system keeps the peak of all memory alone."""
    gc.collect()
    _trim()
    used, over, before = Used(), threading.Event(), anonymous()

    def watch() -> None:
        while not over.wait(PERIOD):
            used.mib = max(used.mib, anonymous() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    gc.disable()
    try:
        yield used
    finally:
        over.set()
        watcher.join()
        _trim()
        used.left = anonymous() - before
        gc.enable()


def _trim() -> None:
    """Give back what was freed and is held for later."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
