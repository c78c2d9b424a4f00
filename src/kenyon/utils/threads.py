"""Pieces of work side by side: on the cores of a CPU, each computed by one of them, or in streams of a GPU.

How a large sum rounds depends on how many threads share it. Here no thread shares its work: pieces are cut by what is
to be computed, never by how many cores there are, and so the numbers are the same on any number of cores.

Rows of numbers in pieces that a CPU's cache holds, side by side on its cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
OURS = "kenyon-"  # how the names of threads begin that are made here


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use so many CPU threads in this thread for a while; None leaves the number as it is, and only makes
    sure that the thread knows it.
    """
    with _changing.lock:
        before = torch.get_num_threads()
        if count not in (None, before):
            _set_here(count, before)
    try:
        yield
    finally:
        if count not in (None, before):
            torch.set_num_threads(before)


def _set_here(count: int, elsewhere: int) -> None:
    """torch.set_num_threads of this thread alone. PyTorch also gives the number that was set last to every thread
    that asks for the first time later, which then keeps it: so another thread puts that back at once.
    """
    torch.set_num_threads(count)
    if any(thread is not threading.current_thread() and not _ours(thread) for thread in threading.enumerate()):
        _changing.restoring().submit(torch.set_num_threads, elsewhere).result()


class _Changing:
    """While the lock is held, what PyTorch tells a new thread may be another thread's number."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
        self.restorer: ThreadPoolExecutor | None = None

    def restoring(self) -> ThreadPoolExecutor:
        if self.restorer is None:
            self.restorer = ThreadPoolExecutor(1, f"{OURS}restoring")
        return self.restorer


_changing = _Changing()


def _ours(thread: threading.Thread) -> bool:
    return thread.name.startswith(OURS)


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[work(item) for item in items], on as many threads as PyTorch may use here, each item by one of them.

    The work may call this in turn, once: what it cuts goes to a second set of threads, so that a core without an item
    finds something to do. An error is raised when nobody works on these items any more, the first in their order.
    """
    cores = 1 if _here.depth > 1 else _here.cores or torch.get_num_threads()
    if cores == 1 or len(items) == 1:
        with cpu_threads(1), _deeper(cores):
            return [work(item) for item in items]
    grad = torch.is_grad_enabled()

    def one(item: Item) -> Result:
        with torch.set_grad_enabled(grad):  # which PyTorch knows for each thread
            return work(item)

    pool = _pool(cores, _here.depth)
    futures = [pool.submit(one, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


class SharedSetting:
    """A setting of the process that threads need for a while: the first to come sets it, the last to leave puts it
    back. A context manager, of which there is one for all threads.
    """

    def __init__(self, set_it: Callable[[], Callable[[], object]]) -> None:
        """`set_it` returns what puts the setting back."""
        self._set, self._lock, self._inside = set_it, threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._put_back = self._set()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._put_back()


def in_streams(work: Callable[[int], None], items: Sequence[int], streams: Sequence[torch.cuda.Stream]) -> None:
    """Do each item's work in the stream of its number; without streams, one after another.

    Streams begin behind what the current one has been given, which in turn goes on when all are done. So memory may
    come from the current stream and be used in theirs, and the other way round.
    """
    if not streams:
        for item in items:
            work(item)
        return
    main = torch.cuda.current_stream()
    for item in items:
        streams[item].wait_stream(main)
        with torch.cuda.stream(streams[item]):
            work(item)
    for item in items:
        main.wait_stream(streams[item])


class _Here(threading.local):
    """What a thread knows of itself."""

    depth = 0  # how often the work at hand has been cut
    cores: int | None = None  # among how many; None: not cut yet, and PyTorch knows


_here = _Here()


@contextmanager
def _deeper(cores: int) -> Iterator[None]:
    before = _here.depth, _here.cores
    _here.depth, _here.cores = _here.depth + 1, cores
    try:
        yield
    finally:
        _here.depth, _here.cores = before


def _pool(cores: int, depth: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each, for work that has been cut so often."""
    with _changing.lock:
        if (cores, depth) not in _changing.pools:
            _changing.pools[cores, depth] = _started(cores, depth)
        return _changing.pools[cores, depth]


def _started(cores: int, depth: int) -> ThreadPoolExecutor:
    pool, started = ThreadPoolExecutor(cores, f"{OURS}{depth}"), threading.Barrier(cores)

    def start(_: int) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread's first question settles its number; later it would be another's
        _here.depth, _here.cores = depth + 1, cores
        started.wait()

    before = torch.get_num_threads()
    list(pool.map(start, range(cores)))
    torch.set_num_threads(before)  # a thread that anybody starts from now on takes what was set last
    return pool


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: vars(_changing).update(vars(_Changing())))  # no thread survives there

CHUNK = 2**18  # numbers of all rows: as many as the cache of a CPU's core holds, with what moves them


def for_each_chunk(rows: Tensor, work: Callable[[slice], None]) -> None:
    """Do to the columns of rows (R, P) what treats every number by itself: on a CPU side by side, to so few at a time
    that one operation after another finds them in the cache, and memory is passed over once; elsewhere to all.
    """
    parts = column_chunks(rows)
    if len(parts) == 1:
        work(parts[0])
    else:
        parallel_map(work, parts)


def column_chunks(rows: Tensor) -> list[slice]:
    """The columns of rows (R, P), one part after another."""
    R, P = rows.shape
    each = max(1, CHUNK // R) if rows.device.type == "cpu" else max(1, P)
    return [slice(first, min(first + each, P)) for first in range(0, P, each)]
