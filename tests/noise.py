"""Threads that disturb: they draw from and seed the global generators that a process has."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def noise() -> Iterator[None]:
    """A thread that draws and seeds all the time."""
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            torch.rand(3)
            torch.manual_seed(int(torch.randint(1000, ())))
            np.random.rand()
            np.random.seed(int(np.random.randint(1000)))
            random.random()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def untouched() -> Iterator[None]:
    """Nobody draws from the global generators, nor seeds them."""
    before = states()
    yield
    for was, now in zip(before, states(), strict=True):
        assert np.array_equal(was, now)


def states() -> list[Any]:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy: Any = np.random.get_state()
    return [
        torch.get_rng_state().numpy(),
        numpy[1].copy(),
        numpy[2],
        random.getstate()[1],
        *(g.numpy() for g in gpus),
    ]
