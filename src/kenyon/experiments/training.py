"""From a trainer that has finished to what is kept of it: runs and their origin.

One fleet from its cells to saved results. Points that differ in strengths only are runs of one program.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Generic

import torch

from kenyon.benchmarks.registry import find_benchmark, make
from kenyon.data import Source, Stream
from kenyon.experiments.grid import C, Cell, CellOf
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import FleetOrigin, Result, Run
from kenyon.experiments.spec import Config
from kenyon.experiments.store import PointFolder
from kenyon.experiments.unfinished import State, identity_of, state_path
from kenyon.experiments.weights import weights_of
from kenyon.methods import Method, find_method
from kenyon.models import Net
from kenyon.training import Interrupted, Trainer
from kenyon.training.checkpoint import REST, SAVE_EVERY, Checkpointer, StateError, load_state
from kenyon.utils.determinism import is_deterministic
from kenyon.utils.files import write_atomically
from kenyon.utils.threads import cpu_threads
from kenyon.version import __version__


def runs_of(trainer: Trainer) -> list[Run]:
    """One run a stream. A run that diverged before its first task was learned has no numbers at all."""
    at = trainer.position

    def one_run(number: int, stream: Stream) -> Run:
        # A run that diverged has the tasks before, however long the runs beside it went on.
        diverged = at.diverged[number]
        records = at.records if diverged is None else at.records[: diverged[0]]

        def last(name: str) -> Any:
            return _rounded(records[-1][name][number]) if records else []

        return Run(
            seed=stream.seed,
            accuracy=[_rounded(record["accuracy"][number]) for record in records],
            own_accuracy=last("own_accuracy"),
            cosine=last("cosine"),
            euclidean=last("euclidean"),
            tasks=[task.name for task in stream.tasks],
            diverged=diverged,
        )

    return [one_run(number, stream) for number, stream in enumerate(trainer.streams)]


def _rounded(value: Any) -> Any:
    return [_rounded(v) for v in value] if isinstance(value, list) else round(value, 4)


SHARING = "KENYON_SHARING"  # in the environment: how many other trainings share the device with this process


def origin_of(trainer: Trainer, seeds: Sequence[int]) -> FleetOrigin:
    """Of the runs of one point: these seeds, and perhaps others' runs beside them."""
    together = len(trainer.streams)
    seconds = trainer.position.seconds * len(seeds) / together
    origin = origin_here(seeds, seconds, trainer.net)
    return replace(origin, together=together) if together > len(seeds) else origin


def origin_here(seeds: Sequence[int], seconds: float, net: Net) -> FleetOrigin:
    """Of what was computed just now, on this machine, with this network."""
    return FleetOrigin(
        seeds=list(seeds),
        seconds=round(seconds, 2),
        device=torch.cuda.get_device_name(net.device) if net.device.type == "cuda" else "cpu",
        precision=str(net.dtype).removeprefix("torch."),
        versions={
            "kenyon": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
        },
        deterministic=is_deterministic() or None,
        sharing=int(os.environ.get(SHARING) or 0) or None,
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


@dataclass(frozen=True)
class CrewOf(Generic[C]):
    """Runs that train together: of one structure, and at one moment of their training."""

    cells: tuple[CellOf[C], ...]
    begun: State | None = None  # the state, perhaps of more runs, that these go on from


Crew = CrewOf[Config]  # of images


def build_method(cells: Sequence[Cell], device: torch.device) -> Method:
    """The method of a fleet: strengths that differ between its runs become tensors (R,), one number a row."""
    config = cells[0].config
    hyper, spec = dict(config.hyper), find_method(config.method)
    members = config.architecture.learners if spec(hyper).apart else 1
    for name in spec.strengths:
        values = [cell.config.hyper.get(name) for cell in cells]
        if len(set(values)) > 1:
            each = torch.tensor(values, dtype=torch.float32, device=device)
            hyper[name] = each.repeat_interleave(members)
    return spec(hyper)


def build_net(config: Config, method: Method, stream: Stream, device: torch.device) -> Net:
    """The network of a configuration: one of them, where a run has several that learn apart."""
    bench, arch = find_benchmark(config.benchmark), config.architecture
    # Of independent learners, and of one a task, each is a network of its own, narrow like one of so many learners.
    beside = len(bench.source.class_counts) if method.schedule == "discrete" else arch.learners
    dtype = None if arch.precision == "auto" else getattr(torch, arch.precision)
    made = make(bench.backbone, arch.width, beside, bench.start)

    def net(learned: dict[str, tuple[int, ...]], dtype: torch.dtype | None) -> Net:
        return Net(
            **made,
            input_shape=stream.input_shape,
            class_counts=stream.class_counts,
            input_dtype=stream.input_dtype,
            shared_head=stream.heads == "shared",
            learners=1 if method.apart else arch.learners,
            diversity=arch.diversity,
            gate=arch.gate,
            first_heads=arch.first_heads,
            learned=learned,
            active_column=method.active_column,
            device=device,
            dtype=dtype,
            in_place=stream.in_place,
        )

    bare = net({}, dtype)
    learned = method.learned(bare)
    return net(learned, bare.dtype) if learned else bare


def build_trainer(cells: Sequence[Cell], source: Source, device: torch.device) -> Trainer:
    """The trainer of some cells of one structure, standing at the beginning."""
    config, method = cells[0].config, build_method(cells, device)
    of_seed = {
        seed: source.stream(seed, tasks=config.tasks, validation=config.training.validation)
        for seed in dict.fromkeys(cell.seed for cell in cells)
    }
    streams = [of_seed[cell.seed] for cell in cells]
    members = config.architecture.learners if method.apart else 1
    return Trainer(build_net(config, method, streams[0], device), streams, method, config.training, members=members)


def train_crew(
    crew: Crew,
    source: Source,
    *,
    device: torch.device,
    out: Path,
    progress: Progress,
    stop: Callable[[], bool],
    keep_every: bool = False,
) -> None:
    """Train to the end and save. When `stop` says so after an epoch, the state is saved and Interrupted raised.

    Whatever else ends it, the last complete epoch that is still at hand is saved. `keep_every`: also keep the weights
    after every task.
    """
    cells = crew.cells
    trainer = build_trainer(cells, source, device)
    if crew.begun is not None:
        begun = crew.begun
        trainer.position = load_state(begun.path, trainer.tensors(), begun.identity, begun.rows(cells))
        if not _possible(trainer):
            raise StateError(begun.path, "it stands where this training never comes by")
        if keep_every:  # it may be what was rescued when these weights could not be written
            _keep_task(trainer, cells, out)
    progress.fleet_starts(cells, int(trainer.done), len(trainer.phases) * trainer.training.epochs)
    path, identity = state_path(out, cells), identity_of(cells)
    with (
        cpu_threads(1 if trainer.net.small else None),
        Checkpointer(trainer, path, identity, every=SAVE_EVERY, rest=REST) as checkpoint,
    ):
        for epoch in checkpoint.between(trainer.epochs()):
            progress.epoch_done(trainer)
            if keep_every:  # before any checkpoint: a task that is over is not learned again
                _keep_task(trainer, cells, out)
            if not stop():
                checkpoint.save_if_due()
                continue
            checkpoint.save()
            if epoch.phase < len(trainer.phases):
                raise Interrupted
        progress.fleet_ends(trainer.position.seconds)
        checkpoint.retrying(lambda: _keep(trainer, cells, out, keep_every))
    checkpoint.remove()


def _possible(trainer: Trainer) -> bool:
    """Whether a position is one of this training: in one of its phases, with the records of the tasks before."""
    at, stages = trainer.position, len(trainer.method.stages)
    there = at.phase <= len(trainer.phases) and at.epoch <= trainer.training.epochs
    return there and len(at.records) == at.phase // stages


def _keep_task(trainer: Trainer, cells: Sequence[Cell], out: Path) -> None:
    """The weights of every run where a task has just ended; after the last task they are the final ones."""
    at, learned = trainer.position, trainer.tasks_before
    if not learned or at.epoch or trainer.stage or at.phase == len(trainer.phases):
        return
    for number, cell in enumerate(cells):
        if at.diverged[number] is None:
            path = PointFolder(out, cell.point).weights_path(cell.seed, after=learned)
            write_atomically(path, weights_of(trainer, number, cell))


def _keep(trainer: Trainer, cells: Sequence[Cell], out: Path, keep_every: bool) -> None:
    """Point after point: killed in between, those that are saved are finished and the others go on from the state."""
    runs = runs_of(trainer)
    for _, same in groupby(range(len(cells)), key=lambda number: cells[number].point.name):
        numbers = list(same)
        point = cells[numbers[0]].point
        mine = [runs[number] for number in numbers]
        origin = origin_of(trainer, [run.seed for run in mine])
        result = Result(point.config.as_dict(), trainer.parameter_count, mine, [origin], point=point.varied)
        number_of = {cells[number].seed: number for number in numbers}

        def weights(seed: int, number_of: dict[int, int] = number_of) -> bytes:
            return weights_of(trainer, number_of[seed], cells[number_of[seed]])

        # Of a search the numbers matter, and its points may be many and large.
        earlier = range(1, point.config.tasks) if keep_every else ()
        PointFolder(out, point).add(result, weights if point.config.search is None else None, earlier)
