"""Times and memory of work on a device, the device's ceilings, and the least work that training needs.

Ceilings are measured at the start of a bench by a large copy and a large matrix product. A device's floor for a piece
of work is the larger of operations / its rate and bytes / its bandwidth, as if arithmetic and memory overlapped
perfectly: no program that computes layer by layer can do with less.

Operations. A layer of M multiply-adds a sample takes 2 M operations forwards, 2 M for the gradient of its weights
and 2 M for that of its input; the first layer's input, the images, needs no gradient. Elementwise work (ReLU,
pooling, dropout, losses, the optimizer) is not counted.

Bytes. Layers are convolutions and dense layers, each with the ReLU, pooling and dropout behind it in one pass:
    forwards   the input read once, the output written once
    backwards  the gradient of the output read, the input read again, the gradient of the input written
Images are bytes and shared by all learners; activations are as wide as the learners' dtype; the head reads every
learner's features. Masks and places of maxima, a few bits each, are not counted, nor are logits. Every parameter is a
float32 number that is passed over (read or written once)
    training    10 times: value forwards and backwards, gradient written and read, value, first and second moment
                read and written; after the first task also importance and anchor, where protected
    importance   6 times: value forwards and backwards, gradient written and read, sum read and written
    evaluation   once a batch
Heads of other tasks need nothing.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Effort:
    """Repetitions of work: at least `least`, then more until `seconds` are spent or `most` is reached."""

    warmup: int  # calls before; on a GPU the library captures CUDA graphs on its second call, so it needs three
    least: int
    most: int
    seconds: float


class Clock:
    """Measure seconds until the device has finished the work: CUDA events on a GPU, the clock on a CPU."""

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
    """Measure several warm pieces of work, each once a turn, so that a disturbance affects all of them."""
    times: list[list[float]] = [[] for _ in works]
    spent = 0.0
    while len(times[0]) < effort.least or (len(times[0]) < effort.most and spent < effort.seconds):
        for seconds, work in zip(times, works, strict=True):
            seconds.append(clock(work))
            spent += seconds[-1]
    return times


class PeakMemory:
    """Peak memory of the watched spans: of tensors on a GPU, of the whole process on a CPU."""

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
            with contextlib.suppress(OSError):  # Linux; elsewhere the peak counts from the start of the process
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


@dataclass(frozen=True)
class Ceilings:
    """The rates that a device reaches at best."""

    bytes_per_s: float  # read and written by a copy
    operations_per_s: float  # of a square matrix product, two a multiply-add
    dtype: str  # of the product's matrices: that of the learners
    copied_mib: int
    product_size: int
    n: int  # repetitions, of which the best counts


def measure_ceilings(device: torch.device, dtype: torch.dtype, *, quick: bool = False) -> Ceilings:
    cuda = device.type == "cuda"
    mib, size = (1024, 8192) if cuda else (256, 2048)
    if quick:
        mib, size = 16, 256
    effort = Effort(warmup=0, least=6, most=6, seconds=0.0)
    clock = Clock(device)
    source = torch.ones(mib * 2**20 // 4, device=device)
    target = torch.empty_like(source)
    a, b, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    copies, products = in_turns([lambda: target.copy_(source), lambda: torch.mm(a, b, out=product)], clock, effort)
    return Ceilings(
        bytes_per_s=2 * mib * 2**20 / min(copies),
        operations_per_s=2 * size**3 / min(products),
        dtype=str(dtype).removeprefix("torch."),
        copied_mib=mib,
        product_size=size,
        n=effort.least,
    )


NUMBER = 4  # bytes of a parameter
TRAINING, PROTECTION, IMPORTANCE, EVALUATION = 10, 2, 6, 1  # passes over the parameters


@dataclass(frozen=True)
class Count:
    """Operations and bytes of some work."""

    operations: int | float
    bytes: int | float

    def __add__(self, other: Count) -> Count:
        return Count(self.operations + other.operations, self.bytes + other.bytes)

    def __mul__(self, times: float) -> Count:
        return Count(self.operations * times, self.bytes * times)


@dataclass(frozen=True)
class Layer:
    """A layer with weights, of one learner."""

    inputs: int  # numbers a sample
    products: int  # multiply-adds a sample
    parameters: int


@dataclass(frozen=True)
class Work:
    """K learners of a backbone with a head."""

    layers: tuple[Layer, ...]
    features: int
    classes: int
    learners: int
    width: int  # bytes of an activation

    @classmethod
    def of(cls, backbone: nn.Module, shape: tuple[int, ...], classes: int, learners: int, width: int) -> Work:
        """Count the layers of `backbone`, one learner, in a forward pass of one sample."""
        layers: list[Layer] = []

        def look(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            weight: Any = layer.weight
            # Each output number is a sum over one filter, or one row of a dense layer.
            products = made.numel() * weight[0].numel()
            layers.append(Layer(given[0].numel(), products, sum(p.numel() for p in layer.parameters())))

        hooks = [m.register_forward_hook(look) for m in backbone.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        with torch.no_grad():
            features = backbone(torch.zeros(1, *shape)).shape[1]
        for hook in hooks:
            hook.remove()
        return cls(tuple(layers), int(features), classes, learners, width)

    @property
    def protected(self) -> int:
        return self.learners * sum(layer.parameters for layer in self.layers)

    @property
    def head(self) -> int:
        return self.classes * (self.features + 1)

    def training_step(self, batch: float, *, own: bool, protecting: bool) -> Count:
        """`own`: each learner's own prediction is needed too; their sum is the joint prediction."""
        parameters = TRAINING * (self.protected + self.head) + (PROTECTION * self.protected if protecting else 0)
        return self._through(batch, own=own, backward=True) + Count(0, NUMBER * parameters)

    def importance_pass(self, images: int, batch: int) -> Count:
        whole, rest = divmod(images, batch)
        parameters = Count(0, NUMBER * IMPORTANCE * self.protected)

        def of(size: int) -> Count:
            return self._through(size, own=False, backward=True) + parameters

        return of(batch) * whole + (of(rest) if rest else Count(0, 0))

    def evaluation(self, batch: int) -> Count:
        parameters = Count(0, NUMBER * EVALUATION * (self.protected + self.head))
        return self._through(batch, own=True, backward=False) + parameters

    def _through(self, batch: float, *, own: bool, backward: bool) -> Count:
        """Activations and products of one batch, forwards or forwards and backwards."""
        K, inputs = self.learners, [layer.inputs for layer in self.layers]
        outputs = [*inputs[1:], self.features]  # with what follows a layer, its output is the next one's input
        images = inputs[0] * (2 if backward else 1)
        numbers = sum(inputs[1:]) + sum(outputs) + self.features  # read, written, read by the head
        if backward:
            # The head reads features and writes their gradient; a layer reads that of its output and its input,
            # and writes the gradient of its input.
            numbers += 2 * self.features + sum(outputs) + 2 * sum(inputs[1:])
        products = K * sum(layer.products for layer in self.layers)
        head = self.features * self.classes * (K if own else 1)
        operations = 2 * (products + head)
        if backward:
            operations = 3 * operations - 2 * K * self.layers[0].products
        return Count(batch * operations, batch * (images + self.width * K * numbers))


def floor_seconds(count: Count, operations_per_s: float, bytes_per_s: float) -> tuple[float, str]:
    """Return the least time, and which of "operations" and "bytes" determines it."""
    by = {"operations": count.operations / operations_per_s, "bytes": count.bytes / bytes_per_s}
    bound = max(by, key=lambda name: by[name])
    return by[bound], bound
