"""Pieces of work side by side: on the cores of a CPU, each computed by one of them, or in streams of a GPU.

How a large sum rounds depends on how many threads share it. Here no thread shares its work: pieces are cut by what is
to be computed, never by how many cores there are, and so the numbers are the same on any number of cores.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use so many CPU threads for a while; None leaves it as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
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


@functools.cache
def _pool(cores: int, depth: int) -> ThreadPoolExecutor:
    """Threads that compute with one core each, for work that has been cut so often."""
    pool, started = ThreadPoolExecutor(cores, f"kenyon-{depth}"), threading.Barrier(cores)

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
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive there
