"""Times and memory of repeated work, on a CPU or a GPU."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


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
