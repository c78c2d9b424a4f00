"""Work on a device: runs in parallel, repeated work as CUDA graphs, and values that are read without waiting."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache

import torch
from torch import Tensor

from kenyon.backends.executor import Executor
from kenyon.backends.executor import Runs as Runs
from kenyon.errors import ConfigError, DeviceMemoryError, shown
from kenyon.utils.threads import SharedSetting, cpu_threads, in_streams, parallel_map

# Messages of errors of a full device, or of a CPU's memory.
FULL = (
    "CUDA error: out of memory",
    "ALLOC_FAILED",
    "DefaultCPUAllocator",
    "Storage size calculation overflowed",
    "multiplication overflow",
)

MUCH = 0.1  # share of a GPU's memory in use by other programs that is reported
FIRST = -1  # priority of a stream; others have 0


def choose_device(name: str = "auto") -> torch.device:
    """Return the device named auto, cpu or cuda; raise ConfigError if it is not available."""
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ConfigError(f"There is no device {shown(name)}. Use auto, cpu or cuda.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"Device {shown(str(name))} is not supported. Use auto, cpu or cuda.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "PyTorch sees no CUDA device here. Choose the device cpu, or install a CUDA build of PyTorch."
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        there = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"There is no device '{name}': PyTorch sees {there}. Choose one of those, or cpu.")
    return device


class NoRoom(DeviceMemoryError, MemoryError):
    """Work that does not fit into the memory of this machine."""

    def __init__(self, short: str) -> None:
        """`short`: the memory that is missing, in words."""
        self.short = short
        super().__init__(
            f"This training does not fit into the memory of the machine: {short}. Take a smaller batch or network, "
            "or fewer learners."
        )


def require_memory(device: torch.device, needed: int) -> None:
    """Raise NoRoom if a CPU's memory is too small: systems overcommit, and later kill the process that uses it."""
    there = _memory() if device.type == "cpu" else None
    if there is not None and needed > there:
        raise NoRoom(f"it needs {needed / 1e9:,.1f} GB or more, and there are {there / 1e9:,.1f} GB")


@cache
def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # unknown on some systems
        return None


def out_of_memory(error: BaseException | None) -> bool:
    """Return True if an error comes from a full device.

    Running out of memory while a CUDA graph is captured breaks the capture, whose error hides the first; libraries
    and the driver have messages of their own, and so have impossible sizes.
    """
    while error is not None:
        words = str(error)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(full in words for full in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def taken_by_others(device: torch.device) -> str:
    """Return the GPU memory that other programs hold, in words; empty if it is little."""
    if device.type != "cuda":
        return ""
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # a device that does not answer any more
        return ""
    others = total - free - torch.cuda.memory_reserved(device)
    if others < MUCH * total:  # it includes this program's own code
        return ""
    held = f"other programs hold {others / 1e9:,.0f} of its {total / 1e9:,.0f} GB"
    return f"{held}, and once they have ended the same command may have room"


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one: kernels and graphs go to the current GPU, whatever their tensors say."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


class Lanes:
    """Does work for every run: in parallel on the cores of a CPU, in CUDA streams on a GPU, or all at once if the
    executor takes all runs.

    The work must write its results into existing tensors, so that no memory changes streams. On a CPU it may call
    `parallel_map` itself.
    """

    def __init__(self, device: torch.device, runs: int, *, together: bool = False, threads: bool = False) -> None:
        """`threads`: several threads of a CPU may work at the same time; if not, runs are computed in order."""
        self.together, self.threads = together, threads
        # With priority over work for all runs at once: small kernels would wait for a pass over all weights, also for
        # that of another training on the device.
        gpu = device.type == "cuda"
        self.streams = [torch.cuda.Stream(device, priority=FIRST) for _ in range(runs)] if gpu else []

    def each(self, runs: Sequence[int], work: Callable[[Runs], None]) -> None:
        """Do the work for these runs. Others have ended; where all runs are computed at once, theirs is unused."""
        if self.together:
            with cpu_threads(None if self.streams else 1):
                work(slice(None))
            return
        if self.threads and not self.streams:
            parallel_map(work, runs)
        else:
            in_streams(work, runs, self.streams)


class Captured:
    """Work without arguments that is repeated many times over tensors that stay in place.

    On a GPU the first call runs eagerly (it warms up, and shows whether the network draws random numbers), the second
    is captured as a CUDA graph, and later calls replay it. On a CPU, and if work cannot be captured, every call runs
    eagerly.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, executor: Executor) -> None:
        self.work, self.executor = work, executor
        self.on_gpu = device.type == "cuda"
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None and self.on_gpu and self.calls > 0 and self.executor.capturable:
            self.graph = self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.work()
        self.calls += 1

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        torch.cuda.synchronize()
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state = generator.clone_state()
        try:
            with _garbage_waits, torch.cuda.graph(graph, pool=pool):
                self.work()
        except RuntimeError as error:
            _give_back(pool)
            # A failed capture leaves the generator in capture mode, in which the next draw would fail.
            generator.graphsafe_set_state(state)
            if isinstance(error, torch.OutOfMemoryError) or not self.executor.refuse_capture():
                raise
            return None
        return graph


def _no_garbage() -> Callable[[], None]:
    looking = gc.isenabled()
    gc.disable()
    return gc.enable if looking else lambda: None


# No garbage collection meanwhile: a discarded trainer holds graphs, and destroying one fails a capture in progress.
_garbage_waits = SharedSetting(_no_garbage)


def _give_back(pool: tuple[int, int]) -> None:
    """Free the memory of a failed capture, which PyTorch would keep forever."""
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with suppress(RuntimeError, AttributeError, TypeError):
            getattr(torch._C, name)(torch.cuda.current_device(), pool)


class Answers:
    """Reads values of every row after an epoch. Values of a GPU are known one epoch later: waiting for them would
    leave the GPU idle.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()  # epoch, values, when they arrive

    def ask(self, epoch: int, rows: Tensor) -> None:
        self.waiting.append((epoch, rows.to("cpu", non_blocking=True, copy=True), _finished_event(self.device)))

    def known(self, *, last: bool = False) -> list[tuple[int, list[float]]]:
        """Return (epoch, rows) of the epochs that are known; of all epochs after the `last`."""
        found = []
        while len(self.waiting) > (1 if self.device.type == "cuda" and not last else 0):
            epoch, rows, event = self.waiting.popleft()
            if event is not None:
                event.synchronize()
            found.append((epoch, rows.tolist()))
        return found


class Finite:
    """Checks that the losses of every run stay finite."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.losses = torch.zeros(rows, device=device)  # summed over the phase: finite as long as each loss is
        self.answers = Answers(device)

    def clear(self) -> None:
        self.losses.zero_()

    def add(self, losses: Tensor) -> None:
        """Add losses (R,); part of captured steps."""
        self.losses.add_(losses)

    def fallen(self, epoch: int, *, last: bool, settled: Tensor | None = None) -> list[tuple[int, list[int]]]:
        """Return (epoch, rows that were not finite after it) of the epochs that are known, and of all epochs after
        the `last` of a phase. Rows that are `settled` were finite before; their later weights are discarded.
        """
        finite = torch.isfinite(self.losses)
        self.answers.ask(epoch, finite if settled is None else finite | settled)
        known = self.answers.known(last=last)
        return [(earlier, [row for row, there in enumerate(rows) if not there]) for earlier, rows in known]


def _finished_event(device: torch.device) -> torch.cuda.Event | None:
    """Return an event after all work submitted to a GPU so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
