"""Places on this machine: this process, one fleet after another, or several processes, one for each GPU or some
cores.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any

import torch

from kenyon.experiments.progress import Progress
from kenyon.sweep.jobs import DIED, FAILED, Order, Outcome
from kenyon.sweep.worker import work
from kenyon.utils.files import cores


class Local:
    """This process: an order is finished when `start` returns."""

    busy = 0

    def __init__(
        self, device: str, *, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.device, self.progress, self.stopping = device, progress, stop
        self.ended: list[tuple[Order, Outcome]] = []

    @property
    def free(self) -> bool:
        return not self.ended

    def start(self, order: Order) -> None:
        outcome = work(replace(order, device=self.device), progress=self.progress, stop=self.stopping)
        self.ended.append((order, outcome))

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        ended, self.ended = self.ended, []
        if not ended:
            time.sleep(seconds)
        return ended

    def stop(self) -> None: ...

    def close(self) -> None: ...


LAST = 30.0  # seconds that a worker has for saving at its end


class Processes:
    """Processes of this machine, a GPU or some cores each."""

    def __init__(self, workers: int, device: str) -> None:
        self.context: SpawnContext = multiprocessing.get_context("spawn")  # PyTorch's threads survive no fork
        self.stopping = self.context.Event()
        threads = max(1, cores() // workers)
        self.workers = [
            Worker(self.context, self.stopping, _device(device, number), threads) for number in range(workers)
        ]

    @property
    def slots(self) -> int:
        return len(self.workers)

    @property
    def busy(self) -> int:
        return sum(worker.order is not None for worker in self.workers)

    @property
    def free(self) -> bool:
        return self.busy < self.slots

    def start(self, order: Order) -> None:
        next(worker for worker in self.workers if worker.order is None).start(order)

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        working = [worker for worker in self.workers if worker.order is not None]
        wait([handle for worker in working for handle in worker.handles], seconds)
        return [ended for worker in working if (ended := worker.finished()) is not None]

    def stop(self) -> None:
        self.stopping.set()
        while self.busy:
            self.finished(1.0)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        for worker in self.workers:
            worker.gone()
        self.workers = []


@dataclass
class Worker:
    """One process at a time, which stays from fleet to fleet. A process that died is replaced."""

    context: SpawnContext
    stopping: Event
    device: str
    threads: int
    order: Order | None = None
    process: SpawnProcess | None = None
    pipe: Connection[Any, Any] | None = field(default=None, repr=False)

    def start(self, order: Order) -> None:
        if self.process is None or not self.process.is_alive():
            self.pipe, theirs = self.context.Pipe()
            self.process = self.context.Process(target=serve, args=(theirs, self.stopping, self.threads), daemon=True)
            self.process.start()
            theirs.close()
        assert self.pipe is not None
        self.order = order
        with contextlib.suppress(BrokenPipeError):  # it died just now: `finished` notices
            self.pipe.send(replace(order, device=self.device))

    @property
    def handles(self) -> list[Any]:
        assert self.process is not None
        return [self.pipe, self.process.sentinel]

    def finished(self) -> tuple[Order, Outcome] | None:
        assert self.order is not None and self.process is not None and self.pipe is not None
        order = self.order
        try:
            if self.pipe.poll():
                outcome = self.pipe.recv()
            elif self.process.is_alive():
                return None
            else:
                outcome = Outcome(DIED)
        except (EOFError, OSError):
            outcome = Outcome(DIED)
        if outcome.end in (DIED, FAILED):
            self.process.join()
            self.process = None
        self.order = None
        return order, outcome

    def end(self) -> None:
        if self.pipe is not None:
            self.pipe.close()  # ends a worker that waits
        if self.process is not None and self.order is not None:
            self.process.terminate()  # a worker that trains saves its state

    def gone(self) -> None:
        if self.process is not None:
            self.process.join(LAST)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()


def serve(pipe: Connection[Any, Any], stopping: Event, threads: int) -> None:
    """Carry out orders until there are none, or one failed. Ctrl-C is left to the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            outcome = work(pipe.recv(), stop=stopping.is_set)
            pipe.send(outcome)
            if outcome.end == FAILED:
                return  # a GPU's error may stay for the rest of a process


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # raised in the training, which saves


def _device(device: str, number: int) -> str:
    if device == "cpu" or not torch.cuda.is_available():
        return device
    return f"cuda:{number % torch.cuda.device_count()}" if device in ("auto", "cuda") else device
