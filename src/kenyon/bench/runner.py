"""Carry out a plan: fleet after fleet, the library and the plain reference in turns."""

from __future__ import annotations

import datetime
import gc
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from kenyon.bench.limits import Ceilings, Count, Work, floor_seconds, measure_ceilings
from kenyon.bench.plain import Plain
from kenyon.bench.plan import LATE, Clock, Effort, Extent, FleetKey, PeakMemory, Point, Spread, effort, in_turns
from kenyon.bench.result import Against, BenchResult, Record
from kenyon.bench.subject import Piece, Subject, synthetic
from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Source
from kenyon.experiments.spec import configure
from kenyon.methods import find_method
from kenyon.methods.importance import GradientImportance
from kenyon.utils.threads import cpu_threads
from kenyon.version import __version__


class Progress(Protocol):
    def __call__(self, doing: str, done: int, total: int) -> None: ...


def new_result(device: torch.device, *, quick: bool) -> BenchResult:
    """An empty result that knows where it comes from."""
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
    """Measure everything in the plan into `result`: what is in it stays, whatever interrupts the rest."""
    started = time.monotonic()
    hurry = started + LATE[device.type]
    fleets = [(extent, fleet, points) for extent in plan for fleet, points in extent.fleets().items()]
    sources: dict[str, Source] = {}
    try:
        for number, (extent, fleet, points) in enumerate(fleets):
            name = extent.benchmark
            tell(str(fleet), number, len(fleets))
            if name not in sources:
                sources = {name: synthetic(find_benchmark(name), extent.train, extent.test)}
            try:
                _measure_fleet(fleet, points, sources[name], device, result, hurry)
            except torch.OutOfMemoryError:
                result.left_out.append(f"{fleet}: the device has not enough memory")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        result.complete = True
        tell("done", len(fleets), len(fleets))
    finally:
        result.seconds = round(time.monotonic() - started, 1)


def _measure_fleet(
    fleet: FleetKey, points: Sequence[Point], source: Source, device: torch.device, result: BenchResult, hurry: float
) -> None:
    """All points of one fleet. After `hurry` on the clock everything is timed once only."""
    overrides = {"learners": fleet.learners} if find_method(fleet.method).multi else {}
    config = configure(fleet.benchmark, fleet.method, overrides=overrides)
    result.configs.setdefault(f"{fleet.benchmark}/{fleet.method}/{fleet.learners}", config.as_dict())
    memory = PeakMemory(device)
    with memory.watched():
        subject = Subject(config, source, fleet.runs, device)
    if result.ceilings is None:
        result.precision = str(subject.dtype).removeprefix("torch.")
        result.ceilings = measure_ceilings(device, subject.dtype, quick=result.quick)
    with cpu_threads(1 if subject.small else None):  # as when the library trains
        for point in points:
            with memory.watched():
                subject.begin(point.task - 1)
            for piece, compared in point.pieces:
                late = time.monotonic() > hurry
                how = effort(device, fleet.benchmark, quick=result.quick, late=late)
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
        **point.fleet._asdict(),
        width=subject.config.architecture.width,
        task=point.task,
        piece=piece,
        sweeps=point.pieces[piece, compared],
        ms=_milliseconds(own, per_call),
        images=subject.images(piece),
        least=least,
        floor_ms=1000 * floor,
        bound=bound,
        memory_mib=memory.mib,
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
    """Operations and bytes of all runs, by the samples that are there: padding is not needed."""
    config, streams, task = subject.config, subject.streams, point.task - 1
    bench, arch, method = find_benchmark(config.benchmark), config.architecture, config.build_method()
    backbone = bench.backbone(arch.width, arch.learners)
    shape, classes = streams[0].input_shape, streams[0].class_counts[task]
    work = Work.of(backbone, shape, classes, arch.learners, subject.dtype.itemsize)
    if piece == "evaluation":
        return sum((work.evaluation(len(t.test)) for s in streams for t in s.tasks), Count(0, 0))
    if piece == "importance":
        assert isinstance(method.importance, GradientImportance)
        size = method.importance.batch
        return sum((work.importance_pass(len(s.tasks[task].train), size) for s in streams), Count(0, 0))
    own = "learner_outputs" in method.needs
    batch = subject.images(piece) / subject.runs  # on average: the last batch of an epoch is smaller
    return work.training_step(batch, own=own, protecting=task > 0) * subject.runs


def _processor() -> str:
    """The CPU's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2] for line in lines if line.startswith("model name"))
        return " ".join(name.replace("(R)", "").replace("(TM)", "").split())
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
