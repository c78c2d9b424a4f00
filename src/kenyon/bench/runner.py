"""The plan of a bench and its execution: the library and the plain reference, one ensemble of runs after another.

The plan is a list of points, each an ensemble of runs at a task. Every axis is swept around one base point (runs,
learners, second task), where all pieces are also measured alternately with plain code. Points that several sweeps
share are measured once; alternating measurements are separate ones, since both sides disturb each other's caches.
"""

from __future__ import annotations

import datetime
import gc
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

import torch

from kenyon.bench.device import (
    Ceilings,
    Clock,
    Count,
    Effort,
    PeakMemory,
    Work,
    floor_seconds,
    in_turns,
    measure_ceilings,
)
from kenyon.bench.plain import Plain
from kenyon.bench.result import SECOND, Against, BenchResult, Piece, Record, Spread, Sweep
from kenyon.bench.subject import Subject, synthetic
from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Source
from kenyon.experiments.config import configure
from kenyon.methods import LEARNERS, find_method
from kenyon.utils.text import counted
from kenyon.utils.threads import cpu_threads
from kenyon.version import __version__

METHODS = {"ewc": 1, "caf-ewc": LEARNERS}  # with their usual numbers of learners


class EnsembleKey(NamedTuple):
    benchmark: str
    method: str
    runs: int
    learners: int

    def __str__(self) -> str:
        several = f", {self.learners} learners" if self.learners > 1 else ""
        return f"{self.benchmark} {self.method}, {counted(self.runs, 'run')}{several}"


@dataclass(frozen=True)
class Point:
    """An ensemble at a task, and the pieces of work that are measured there."""

    ensemble: EnsembleKey
    task: int  # counted from 1
    pieces: dict[tuple[Piece, bool], tuple[Sweep, ...]]  # (piece, compared with plain code) -> sweeps that need it


@dataclass(frozen=True)
class Extent:
    """The part of a benchmark that is measured."""

    benchmark: str
    base_runs: int
    runs: tuple[int, ...]
    learners: tuple[int, ...]  # of caf-ewc
    tasks: tuple[int, ...]
    train: int  # images per class, of which a share is held out for validation
    test: int
    task_pieces: tuple[Piece, ...] = ("step", "importance")  # measured at every task of that sweep

    def ensembles(self) -> dict[EnsembleKey, list[Point]]:
        """Return the points of each ensemble in the order of their tasks, shared points once."""
        wanted: dict[EnsembleKey, dict[int, dict[tuple[Piece, bool], tuple[Sweep, ...]]]] = {}
        for key, task, piece, sweep in self._measurements():
            pieces, what = wanted.setdefault(key, {}).setdefault(task, {}), (piece, sweep == "pieces")
            pieces[what] = (*pieces.get(what, ()), sweep)
        return {
            key: [Point(key, task, pieces) for task, pieces in sorted(tasks.items())] for key, tasks in wanted.items()
        }

    def _measurements(self) -> Iterator[tuple[EnsembleKey, int, Piece, Sweep]]:
        for method, learners in METHODS.items():
            base = EnsembleKey(self.benchmark, method, self.base_runs, learners)
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


LATE = {"cpu": 70.0, "cuda": 120.0}  # seconds after which work is timed once only, to end in about two minutes


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


class Progress(Protocol):
    def __call__(self, doing: str, done: int, total: int) -> None: ...


def new_result(device: torch.device, *, quick: bool) -> BenchResult:
    """Return an empty result with its origin."""
    return BenchResult(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        kind=device.type,
        threads=torch.get_num_threads(),
        precision="",
        memory=PeakMemory(device).kind,
        versions={
            "kenyon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
        },
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        quick=quick,
    )


def run_bench(plan: Sequence[Extent], device: torch.device, result: BenchResult, tell: Progress) -> None:
    """Measure the plan into `result`, which keeps its records if the bench is interrupted."""
    started = time.monotonic()
    hurry = started + LATE[device.type]
    ensembles = [(extent, key, points) for extent in plan for key, points in extent.ensembles().items()]
    sources: dict[str, Source] = {}
    try:
        for number, (extent, key, points) in enumerate(ensembles):
            name = extent.benchmark
            tell(str(key), number, len(ensembles))
            if name not in sources:
                sources = {name: synthetic(find_benchmark(name), extent.train, extent.test)}
            try:
                _measure_ensemble(key, points, sources[name], device, result, hurry)
            except torch.OutOfMemoryError:
                result.left_out.append(f"{key}: the device has not enough memory")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        result.complete = True
        tell("done", len(ensembles), len(ensembles))
    finally:
        result.seconds = round(time.monotonic() - started, 1)


def _measure_ensemble(
    key: EnsembleKey, points: Sequence[Point], source: Source, device: torch.device, result: BenchResult, hurry: float
) -> None:
    """Measure all points of one ensemble. After `hurry` on the clock everything is timed once only."""
    overrides = {"learners": key.learners} if find_method(key.method).multi else {}
    config = configure(key.benchmark, key.method, overrides=overrides)
    result.configs.setdefault(f"{key.benchmark}/{key.method}/{key.learners}", config.as_dict())
    memory = PeakMemory(device)
    with memory.watched():
        subject = Subject(config, source, key.runs, device)
    if result.ceilings is None:
        result.precision = str(subject.dtype).removeprefix("torch.")
        result.ceilings = measure_ceilings(device, subject.dtype, quick=result.quick)
    with cpu_threads(1 if subject.small else None):  # as when the library trains
        for point in points:
            with memory.watched():
                subject.begin(point.task - 1)
            for piece, compared in point.pieces:
                late = time.monotonic() > hurry
                how = effort(device, key.benchmark, quick=result.quick, late=late)
                result.records.append(_measure(point, piece, compared, subject, memory, result.ceilings, how))


def _measure(
    point: Point,
    piece: Piece,
    compared: bool,
    subject: Subject,
    memory: PeakMemory,
    ceilings: Ceilings,
    how: Effort,
) -> Record:
    device, work = memory.device, subject.pieces[piece]
    clock = Clock(device)
    with memory.watched():
        for _ in range(how.warmup):
            clock(work)
    per_call = subject.steps if piece == "step" else 1  # a call trains a whole epoch
    # Compared at equal precision too, where the library's is not float32.
    precisions = dict.fromkeys((torch.float32, subject.dtype)) if compared else {}
    rivals = {p: Plain(subject.config, subject.streams[0], point.task - 1, device, p) for p in precisions}
    for rival in rivals.values():
        rival.take(subject.state(0))
        clock(rival.pieces[piece])
    own, *others = in_turns([work, *(rival.pieces[piece] for rival in rivals.values())], clock, how)
    least = _least(point, piece, subject)
    floor, bound = floor_seconds(least, ceilings.operations_per_s, ceilings.bytes_per_s)
    return Record(
        **point.ensemble._asdict(),
        width=subject.config.architecture.width,
        task=point.task,
        piece=piece,
        sweeps=point.pieces[piece, compared],
        ms=_milliseconds(own, per_call),
        images=subject.images(piece),
        least=least,
        floor_ms=1000 * floor,
        bound=bound,
        memory_mib=memory.mib or None,
        against=tuple(
            Against(
                str(precision).removeprefix("torch."),
                _milliseconds(seconds, per_call),
                Spread.of([subject.runs * plainly / ours for plainly, ours in zip(seconds, own, strict=True)]),
            )
            for precision, seconds in zip(rivals, others, strict=True)
        ),
    )


def _milliseconds(seconds: Sequence[float], per_call: int) -> Spread:
    return Spread.of([1000 * s / per_call for s in seconds])


def _least(point: Point, piece: Piece, subject: Subject) -> Count:
    """Operations and bytes of all runs for the samples themselves, without padding."""
    config, streams, task = subject.config, subject.streams, point.task - 1
    bench, arch, method = find_benchmark(config.benchmark), config.architecture, config.build_method()
    backbone = bench.backbone(arch.width, arch.learners)
    shape, classes = streams[0].input_shape, streams[0].class_counts[task]
    work = Work.of(backbone, shape, classes, arch.learners, subject.dtype.itemsize)
    if piece == "evaluation":
        return sum((work.evaluation(len(t.test)) for s in streams for t in s.tasks), Count(0, 0))
    if piece == "importance":
        size = subject.importance.batch
        return sum((work.importance_pass(len(s.tasks[task].train), size) for s in streams), Count(0, 0))
    own = "learner_outputs" in method.needs
    batch = subject.images(piece) / subject.runs  # on average: the last batch of an epoch is smaller
    return work.training_step(batch, own=own, protecting=task > 0) * subject.runs


def _processor() -> str:
    """Return the CPU's name if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2] for line in lines if line.startswith("model name"))
        return " ".join(name.replace("(R)", "").replace("(TM)", "").split())
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
