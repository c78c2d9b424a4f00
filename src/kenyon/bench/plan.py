"""Times and memory of repeated work, on a CPU or a GPU.

What is measured on which device: a list of points, each a fleet standing at a task.

Every axis is swept around one base point (runs, learners, second task), where all pieces are also measured in turns
with plain code. What belongs to several sweeps is measured once; turns are a measurement of their own, for the two
disturb each other's caches.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch

from kenyon.bench.subject import Piece
from kenyon.methods import LEARNERS
from kenyon.utils.text import counted


@dataclass(frozen=True)
class Effort:
    """How often work is repeated: at least `least` times, and on until `seconds` are spent or `most` is reached."""

    warmup: int  # calls before; on a GPU the library captures CUDA graphs on its second call, so it needs three
    least: int
    most: int
    seconds: float


@dataclass(frozen=True)
class Spread:
    """The median of n values, with the quartiles around it."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


class Clock:
    """Seconds of a piece of work, until the device has finished it: CUDA events on a GPU, the clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) / 1000


def in_turns(works: Sequence[Callable[[], object]], clock: Clock, effort: Effort) -> list[list[float]]:
    """Seconds of several warm pieces of work, each done once a turn, so that what disturbs one disturbs all."""
    times: list[list[float]] = [[] for _ in works]
    spent = 0.0
    while len(times[0]) < effort.least or (len(times[0]) < effort.most and spent < effort.seconds):
        for seconds, work in zip(times, works, strict=True):
            seconds.append(clock(work))
            spent += seconds[-1]
    return times


class PeakMemory:
    """The most memory in use in the spans that were watched: by tensors on a GPU, by the whole process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.mib = device, 0.0

    @property
    def kind(self) -> str:
        return "CUDA memory of tensors" if self.device.type == "cuda" else "resident memory of the process"

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):  # Linux; elsewhere the peak is that since the process began
                Path("/proc/self/clear_refs").write_text("5")
        yield
        self.mib = max(self.mib, self._peak())

    def _peak(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) / 2**10
        try:
            import resource
        except ImportError:  # not on Windows
            return float("nan")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


Sweep = Literal["pieces", "runs", "learners", "tasks"]
METHODS = {"ewc": 1, "caf-ewc": LEARNERS}  # and their usual numbers of learners
SECOND = 2  # the first task with penalties: everything that a later one has


class FleetKey(NamedTuple):
    benchmark: str
    method: str
    runs: int
    learners: int

    def __str__(self) -> str:
        several = f", {self.learners} learners" if self.learners > 1 else ""
        return f"{self.benchmark} {self.method}, {counted(self.runs, 'run')}{several}"


@dataclass(frozen=True)
class Point:
    """A fleet at a task, and what is measured there, compared with plain code or not, for which sweeps."""

    fleet: FleetKey
    task: int  # counted from 1
    pieces: dict[tuple[Piece, bool], tuple[Sweep, ...]]


@dataclass(frozen=True)
class Extent:
    """How much of a benchmark is measured."""

    benchmark: str
    base_runs: int
    runs: tuple[int, ...]
    learners: tuple[int, ...]  # of caf-ewc
    tasks: tuple[int, ...]
    train: int  # images a class, of which a share is held out for validation
    test: int
    task_pieces: tuple[Piece, ...] = ("step", "importance")  # measured at every task of that sweep

    def fleets(self) -> dict[FleetKey, list[Point]]:
        """The points of each fleet in the order of their tasks. What several sweeps ask for is there once."""
        wanted: dict[FleetKey, dict[int, dict[tuple[Piece, bool], tuple[Sweep, ...]]]] = {}
        for fleet, task, piece, sweep in self._wishes():
            pieces, what = wanted.setdefault(fleet, {}).setdefault(task, {}), (piece, sweep == "pieces")
            pieces[what] = (*pieces.get(what, ()), sweep)
        return {
            fleet: [Point(fleet, task, pieces) for task, pieces in sorted(tasks.items())]
            for fleet, tasks in wanted.items()
        }

    def _wishes(self) -> Iterator[tuple[FleetKey, int, Piece, Sweep]]:
        for method, learners in METHODS.items():
            base = FleetKey(self.benchmark, method, self.base_runs, learners)
            for task in self.tasks:
                for piece in self.task_pieces:
                    yield base, task, piece, "tasks"
            for runs in self.runs:
                yield base._replace(runs=runs), SECOND, "step", "runs"
            if learners > 1:
                for several in self.learners:
                    yield base._replace(learners=several), SECOND, "step", "learners"
            for piece in get_args(Piece):
                yield base, SECOND, piece, "pieces"


CIFAR, DIGITS = "r-cifar-100", "digits"


def extents(device: torch.device, *, quick: bool = False) -> tuple[Extent, ...]:
    # Sizes as in the benchmarks themselves. On a CPU the convolutional network gets one full batch a task.
    digits = Extent(DIGITS, 5, (1, 2, 5, 10, 20), (1, 2, 3, 5, 8, 10), (1, 2, 3, 4, 5), train=36, test=144)
    if quick:
        small = Extent(DIGITS, 2, (1, 2), (1, 2, 5), (1, 2, 5), train=12, test=4)
        return (replace(small, benchmark=CIFAR), small) if device.type == "cuda" else (small,)
    if device.type == "cuda":
        cifar = Extent(CIFAR, 5, (1, 2, 5, 10, 20), (1, 2, 3, 5, 8, 10), (1, 2, 5, 10, 20), train=500, test=100)
    else:
        cifar = Extent(CIFAR, 1, (1, 2, 4), (1, 2, 5, 10), (1, 2, 10, 20), train=56, test=4, task_pieces=("step",))
    return cifar, digits


LATE = {"cpu": 70.0, "cuda": 120.0}  # seconds after which a bench hurries, to end in about two minutes


def effort(device: torch.device, benchmark: str, *, quick: bool = False, late: bool = False) -> Effort:
    if quick:
        return Effort(warmup=1, least=2, most=2, seconds=0.0)
    if device.type == "cuda":
        usual = Effort(warmup=3, least=3, most=30, seconds=1.0)
    elif benchmark == DIGITS:
        return Effort(warmup=2, least=5, most=30, seconds=0.2)
    else:
        usual = Effort(warmup=1, least=3, most=9, seconds=1.0)
    return replace(usual, least=1, most=1) if late else usual
