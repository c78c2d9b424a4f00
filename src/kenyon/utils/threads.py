"""Parallel work on the cores of a CPU, each item computed by one of them, and in the streams of a GPU.

How a large sum rounds depends on the number of threads that share it. Here no thread shares its work: chunks depend
on what is computed, never on the number of cores, so the numbers are the same on any number of cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
THREAD_PREFIX = "kenyon-"  # begins the names of threads that are started here
CHUNK = 2**18  # numbers of all rows: they fit the cache of a CPU core, with the state that updates them


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Set the number of CPU threads that PyTorch uses in this thread; None keeps it, and only makes sure that the
    thread has read it.
    """
    with _pools.lock:
        before = torch.get_num_threads()
        if count not in (None, before):
            _set_in_this_thread(count, before)
    try:
        yield
    finally:
        if count not in (None, before):
            torch.set_num_threads(before)


def _set_in_this_thread(count: int, elsewhere: int) -> None:
    """Call torch.set_num_threads for this thread alone. A thread that asks PyTorch for the first time gets, and
    keeps, the number that was set last anywhere: so another thread sets the old one again at once.
    """
    torch.set_num_threads(count)
    others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
    if any(not thread.name.startswith(THREAD_PREFIX) for thread in others):
        _pools.restoring().submit(torch.set_num_threads, elsewhere).result()


class _Pools:
    """The threads started here. While the lock is held, a new thread may read another thread's number of threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by cores and depth
        self.restorer: ThreadPoolExecutor | None = None

    def restoring(self) -> ThreadPoolExecutor:
        if self.restorer is None:
            self.restorer = ThreadPoolExecutor(1, f"{THREAD_PREFIX}restoring")
        return self.restorer


_pools = _Pools()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: vars(_pools).update(vars(_Pools())))  # threads do not survive a fork


class _Nesting(threading.local):
    """The calls of `parallel_map` that a thread works inside of."""

    depth = 0
    cores: int | None = None  # that the outermost call had; None outside of any, where PyTorch knows


_nesting = _Nesting()


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return [work(item) for item in items], computed by as many threads as PyTorch may use, one item by one thread.

    The work may call this again, once: inner items go to a second set of threads, so that idle cores find work. An
    error is raised when all items have ended, the first in their order.
    """
    cores = 1 if _nesting.depth > 1 else _nesting.cores or torch.get_num_threads()
    if cores == 1 or len(items) == 1:
        with cpu_threads(1), _nested(cores):
            return [work(item) for item in items]
    grad = torch.is_grad_enabled()

    def one(item: Item) -> Result:
        with torch.set_grad_enabled(grad):  # a setting of each thread
            return work(item)

    pool = _worker_pool(cores, _nesting.depth)
    futures = [pool.submit(one, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@contextmanager
def _nested(cores: int) -> Iterator[None]:
    before = _nesting.depth, _nesting.cores
    _nesting.depth, _nesting.cores = _nesting.depth + 1, cores
    try:
        yield
    finally:
        _nesting.depth, _nesting.cores = before


def _worker_pool(cores: int, depth: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each, for calls of `parallel_map` at one depth."""
    with _pools.lock:
        if (cores, depth) not in _pools.workers:
            _pools.workers[cores, depth] = _start_workers(cores, depth)
        return _pools.workers[cores, depth]


def _start_workers(cores: int, depth: int) -> ThreadPoolExecutor:
    pool, started = ThreadPoolExecutor(cores, f"{THREAD_PREFIX}{depth}"), threading.Barrier(cores)

    def start(_: int) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # fixes the number for this thread; asked later, it could be another thread's
        _nesting.depth, _nesting.cores = depth + 1, cores
        started.wait()

    before = torch.get_num_threads()
    list(pool.map(start, range(cores)))
    torch.set_num_threads(before)  # new threads take the number that was set last
    return pool


class SharedSetting:
    """A process-wide setting that several threads need for a while: the first thread to enter applies it, the last
    one to leave restores it. A context manager with one instance for all threads.
    """

    def __init__(self, apply: Callable[[], Callable[[], object]]) -> None:
        """`apply` changes the setting and returns the function that restores it."""
        self._apply, self._lock, self._inside = apply, threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._restore = self._apply()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._restore()


def _default_to_float32() -> Callable[[], object]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return partial(torch.set_default_dtype, before)


_float32_default = SharedSetting(_default_to_float32)


@contextmanager
def single_precision() -> Iterator[None]:
    """Create tensors in float32, whatever torch.set_default_dtype was called with."""
    with _float32_default:
        yield


def in_streams(work: Callable[[int], None], items: Sequence[int], streams: Sequence[torch.cuda.Stream]) -> None:
    """Run each item's work in the stream of its number; without streams, one item after another.

    Streams wait for the work queued in the current stream, which then waits for all of them. So memory may be
    allocated in the current stream and used in theirs, and vice versa.
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


def for_each_chunk(rows: Tensor, work: Callable[[slice], None]) -> None:
    """Apply elementwise work to the columns of rows (R, P). On a CPU chunks run in parallel, each small enough that
    successive operations find it in the cache and memory is read once; elsewhere there is one chunk.
    """
    chunks = column_chunks(rows)
    if len(chunks) == 1:
        work(chunks[0])
    else:
        parallel_map(work, chunks)


def column_chunks(rows: Tensor) -> list[slice]:
    """Return consecutive slices of the columns of rows (R, P)."""
    R, P = rows.shape
    each = max(1, CHUNK // R) if rows.device.type == "cpu" else max(1, P)
    return [slice(first, min(first + each, P)) for first in range(0, P, each)]
