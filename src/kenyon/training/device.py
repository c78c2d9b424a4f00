"""How work reaches the device: runs side by side, and repeated work as CUDA graphs.

What a device is asked after every epoch without making it wait; and whether all losses have stayed finite.
"""

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
from kenyon.utils.threads import Shared, cpu_threads, in_streams, side_by_side

# What errors of a full device, or of a CPU's memory, say.
FULL = (
    "CUDA error: out of memory",
    "ALLOC_FAILED",
    "DefaultCPUAllocator",
    "Storage size calculation overflowed",
    "multiplication overflow",
)

MUCH = 0.1  # of a GPU's memory, held by others: worth a word
FIRST = -1  # priority of a stream; others have 0


def choose_device(name: str = "auto") -> torch.device:
    """auto, cpu or cuda as a device; an error where it is not there."""
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
    """Work that the memory of this machine cannot hold."""

    def __init__(self, short: str) -> None:
        """`short`: how much is missing."""
        self.short = short
        super().__init__(
            f"This training does not fit into the memory of the machine: {short}. Take a smaller batch or network, "
            "or fewer learners."
        )


def require_memory(device: torch.device, needed: int) -> None:
    """Say at once that a CPU's memory is too small: systems promise more than they have, and end whoever uses it."""
    there = _memory() if device.type == "cpu" else None
    if there is not None and needed > there:
        raise NoRoom(f"it needs {needed / 1e9:,.1f} GB or more, and there are {there / 1e9:,.1f} GB")


@cache
def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere known
        return None


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error comes from a full device.

    Running out of memory while a CUDA graph is captured breaks the capture off, and the error of that hides the
    first; the libraries and the driver have words of their own, and so have sizes that no memory could have.
    """
    while error is not None:
        words = str(error)
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(full in words for full in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def taken_by_others(device: torch.device) -> str:
    """How much of a GPU's memory other programs hold, in words; nothing where it is little."""
    if device.type != "cuda":
        return ""
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # a device that is beyond answering
        return ""
    others = total - free - torch.cuda.memory_reserved(device)
    if others < MUCH * total:  # this program's own code is among it
        return ""
    held = f"other programs hold {others / 1e9:,.0f} of its {total / 1e9:,.0f} GB"
    return f"{held}, and once they have ended the same command may have room"


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """Make a GPU the current one: kernels and graphs go to the current GPU, whatever their tensors say."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


class Lanes:
    """Does a piece of work for every run: side by side on the cores of a CPU, each in a stream of its own on a GPU,
    or all at once where the network computes them together.

    A lane's work must leave its results in tensors that exist already, so that no memory changes lanes. On a CPU it
    may call for `side_by_side` in turn.
    """

    def __init__(self, device: torch.device, runs: int, *, together: bool = False, threads: bool = False) -> None:
        """`threads`: whether several threads of a CPU may work at the same time; if not, run after run."""
        self.together, self.threads = together, threads
        # Before what is done for all runs at once: a pass over all weights would have small kernels wait, of another
        # fleet beside this one too.
        gpu = device.type == "cuda"
        self.streams = [torch.cuda.Stream(device, priority=FIRST) for _ in range(runs)] if gpu else []

    def each(self, runs: Sequence[int], work: Callable[[Runs], None]) -> None:
        """Runs left out have come to their end; together they are computed along, and what they give is not used."""
        if self.together:
            with cpu_threads(None if self.streams else 1):
                work(slice(None))
            return
        if self.threads and not self.streams:
            side_by_side(work, runs)
        else:
            in_streams(work, runs, self.streams)


class Captured:
    """A piece of work without arguments that is repeated many times over tensors that stay in place.

    On a GPU the first call runs as it is (and warms up, and shows whether the network draws random numbers), the
    second is captured as a CUDA graph, and from then on it is replayed. On a CPU, and for work that cannot be
    captured, every call runs as it is.
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
            # A capture that breaks off leaves the generator as if it went on: whoever draws next would fail.
            generator.graphsafe_set_state(state)
            if isinstance(error, torch.OutOfMemoryError) or not self.executor.refuse_capture():
                raise
            return None
        return graph


def _no_garbage() -> Callable[[], None]:
    looking = gc.isenabled()
    gc.disable()
    return gc.enable if looking else lambda: None


# Python does not look for garbage: a trainer that is some holds graphs, and none may be destroyed while another is
# captured. The capture would fail, by chance.
_garbage_waits = Shared(_no_garbage)


def _give_back(pool: tuple[int, int]) -> None:
    """The memory of a capture that failed: PyTorch itself would keep it for ever."""
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with suppress(RuntimeError, AttributeError, TypeError):
            getattr(torch._C, name)(torch.cuda.current_device(), pool)


class Answers:
    """Numbers of every row after an epoch. Those of a GPU are known an epoch later, when it has come to them: waiting
    for them at once would leave it idle.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()  # epoch, answer, when it is there

    def ask(self, epoch: int, rows: Tensor) -> None:
        self.waiting.append((epoch, rows.to("cpu", non_blocking=True, copy=True), _finished_event(self.device)))

    def known(self, *, last: bool = False) -> list[tuple[int, list[float]]]:
        """(epoch, rows) of the epochs that are known by now; of all, the `last` one waited for."""
        found = []
        while len(self.waiting) > (1 if self.device.type == "cuda" and not last else 0):
            epoch, rows, event = self.waiting.popleft()
            if event is not None:
                event.synchronize()
            found.append((epoch, rows.tolist()))
        return found


class Finite:
    """Whether the losses of every run have stayed finite."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.losses = torch.zeros(rows, device=device)  # of the phase, added up: finite as long as each of them is
        self.answers = Answers(device)

    def clear(self) -> None:
        self.losses.zero_()

    def add(self, losses: Tensor) -> None:
        """Losses (R,); part of captured steps."""
        self.losses.add_(losses)

    def fallen(self, epoch: int, *, last: bool, settled: Tensor | None = None) -> list[tuple[int, list[int]]]:
        """After an epoch: (epoch, rows that were not finite after it) of the epochs that are known by now, and of all
        after the `last` of a phase. Rows that are `settled` were finite until then; nothing later is kept of them.
        """
        finite = torch.isfinite(self.losses)
        self.answers.ask(epoch, finite if settled is None else finite | settled)
        known = self.answers.known(last=last)
        return [(earlier, [row for row, there in enumerate(rows) if not there]) for earlier, rows in known]


def _finished_event(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that was asked of a GPU so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
