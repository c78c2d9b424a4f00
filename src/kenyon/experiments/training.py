"""A job of images: stream, network, method and trainer from run specifications, and results from a trainer.

Grid points that differ in strengths only are runs of one program.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as to_bytes

from kenyon.benchmarks.registry import find_benchmark, make
from kenyon.data import Source, Stream
from kenyon.experiments.results import FleetOrigin, Result, Run
from kenyon.experiments.store import Job, PointFolder, identity_of, state_path
from kenyon.methods import Method, find_method
from kenyon.models import Net
from kenyon.training.checkpoint import (
    REST,
    SAVE_EVERY,
    Checkpointer,
    Interrupted,
    StateError,
    load_state,
)
from kenyon.training.trainer import Trainer
from kenyon.utils.determinism import is_deterministic
from kenyon.utils.files import write_atomically
from kenyon.utils.threads import cpu_threads
from kenyon.version import __version__

if TYPE_CHECKING:
    from kenyon.experiments.config import Config
    from kenyon.experiments.grid import RunSpec
    from kenyon.experiments.progress import Progress


def runs_of(trainer: Trainer) -> list[Run]:
    """Return the results of a trainer, run by run. A run that diverged has the tasks learned before."""
    at = trainer.position

    def one_run(number: int, stream: Stream) -> Run:
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
    return [_rounded(v) for v in value] if type(value) is list else round(value, 4)


SHARING = "KENYON_SHARING"  # environment variable: number of other trainings on the same device


def origin_of(trainer: Trainer, seeds: Sequence[int]) -> FleetOrigin:
    """Return the origin of the runs of one grid point, which may have trained with runs of others."""
    together = len(trainer.streams)
    seconds = trainer.position.seconds * len(seeds) / together
    origin = origin_here(seeds, seconds, trainer.net)
    return replace(origin, together=together) if together > len(seeds) else origin


def origin_here(seeds: Sequence[int], seconds: float, net: Net) -> FleetOrigin:
    """Return the origin of runs that this process has trained with this network."""
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


def weights_of(trainer: Trainer, number: int, run: RunSpec) -> bytes:
    """Return a run's current weights by name as a file, with the configuration and seed that they belong to.

    A learner's weights have a leading learner axis. Heads of independent learners are (K, T, ...), those of networks
    of single tasks (T, ...).
    """
    M = trainer.members
    if trainer.discrete is not None:
        views = trainer.discrete.weights(number)
    elif M > 1:
        rows = trainer.net.layout.views(trainer.theta[number * M : (number + 1) * M])
        views = {name: row if name in trainer.net.per_head else row.squeeze(1) for name, row in rows.items()}
    else:
        views = trainer.net.layout.views(trainer.theta[number])
    # One entry only: the order of several is not defined, and equal weights are equal files.
    head = {"run": json.dumps({"config": run.config.as_dict(), "seed": run.seed})}
    return to_bytes({name: view.cpu().contiguous() for name, view in views.items()}, metadata=head)


def build_method(runs: Sequence[RunSpec], device: torch.device) -> Method:
    """Return the method of a job. Strengths that differ between its runs become tensors (R,), one number a row."""
    config = runs[0].config
    hyper, spec = dict(config.hyper), find_method(config.method)
    networks = config.architecture.learners if spec(hyper).apart else 1
    for name in spec.strengths:
        values = [run.config.hyper.get(name) for run in runs]
        if len(set(values)) > 1:
            each = torch.tensor(values, dtype=torch.float32, device=device)
            hyper[name] = each.repeat_interleave(networks)
    return spec(hyper)


def build_net(config: Config, method: Method, stream: Stream, device: torch.device) -> Net:
    """Return the network of a configuration, or one of the independent networks of its runs."""
    bench, arch = find_benchmark(config.benchmark), config.architecture
    # Independent networks, and those of single tasks, are each as narrow as one of that many learners.
    parts = len(bench.source.class_counts) if method.schedule == "discrete" else arch.learners
    dtype = None if arch.precision == "auto" else getattr(torch, arch.precision)
    made = make(bench.backbone, arch.width, parts, bench.start)

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


def build_trainer(runs: Sequence[RunSpec], source: Source, device: torch.device) -> Trainer:
    """Return the trainer of runs of one structure, at the beginning."""
    config, method = runs[0].config, build_method(runs, device)
    of_seed = {
        seed: source.stream(seed, tasks=config.tasks, validation=config.training.validation)
        for seed in dict.fromkeys(run.seed for run in runs)
    }
    streams = [of_seed[run.seed] for run in runs]
    members = config.architecture.learners if method.apart else 1
    return Trainer(build_net(config, method, streams[0], device), streams, method, config.training, members=members)


def train_tasks(
    job: Job,
    source: Source,
    *,
    device: torch.device,
    out: Path,
    progress: Progress,
    stop: Callable[[], bool],
    keep_every: bool = False,
) -> None:
    """Train a job of images to the end, and save its results.

    When `stop` returns True after an epoch, the state is saved and Interrupted raised; after another error the last
    complete epoch is saved. `keep_every`: keep the weights after every task too.
    """
    runs = job.runs
    trainer = build_trainer(runs, source, device)
    if job.begun is not None:
        begun = job.begun
        trainer.position = load_state(begun.path, trainer.tensors(), begun.identity, begun.rows(runs))
        if not _possible(trainer):
            raise StateError(begun.path, "its position is none of this training")
        if keep_every:  # the state may have been saved after an error in writing these weights
            _keep_task(trainer, runs, out)
    progress.fleet_starts(runs, int(trainer.done), len(trainer.phases) * trainer.training.epochs)
    path, identity = state_path(out, runs), identity_of(runs)
    with (
        cpu_threads(1 if trainer.net.small else None),
        Checkpointer(trainer, path, identity, every=SAVE_EVERY, rest=REST) as checkpoint,
    ):
        for epoch in checkpoint.between(trainer.epochs()):
            progress.epoch_done(trainer)
            if keep_every:  # before any checkpoint, from which the task would not be learned again
                _keep_task(trainer, runs, out)
            if not stop():
                checkpoint.save_if_due()
                continue
            checkpoint.save()
            if epoch.phase < len(trainer.phases):
                raise Interrupted
        progress.fleet_ends(trainer.position.seconds)
        checkpoint.retrying(lambda: _keep(trainer, runs, out, keep_every))
    checkpoint.remove()


def _possible(trainer: Trainer) -> bool:
    """True if the position is one of this training, with a record for each task before it."""
    at, stages = trainer.position, len(trainer.method.stages)
    there = at.phase <= len(trainer.phases) and at.epoch <= trainer.training.epochs
    return there and len(at.records) == at.phase // stages


def _keep_task(trainer: Trainer, runs: Sequence[RunSpec], out: Path) -> None:
    """Write the weights of every run where a task other than the last has just ended."""
    at, learned = trainer.position, trainer.tasks_before
    if not learned or at.epoch or trainer.stage or at.phase == len(trainer.phases):
        return
    for number, run in enumerate(runs):
        if at.diverged[number] is None:
            path = PointFolder(out, run.point).weights_path(run.seed, after=learned)
            write_atomically(path, weights_of(trainer, number, run))


def _keep(trainer: Trainer, runs: Sequence[RunSpec], out: Path, keep_every: bool) -> None:
    """Add the runs to the results of their grid points. After a kill in between, the others resume from the state."""
    found = runs_of(trainer)
    for _, same in groupby(range(len(runs)), key=lambda number: runs[number].point.name):
        numbers = list(same)
        point = runs[numbers[0]].point
        of_point = [found[number] for number in numbers]
        origin = origin_of(trainer, [run.seed for run in of_point])
        result = Result(point.config.as_dict(), trainer.parameter_count, of_point, [origin], point=point.varied)
        number_of = {runs[number].seed: number for number in numbers}

        def weights(seed: int, number_of: dict[int, int] = number_of) -> bytes:
            return weights_of(trainer, number_of[seed], runs[number_of[seed]])

        # A search keeps no weights: it has many points, and only their scores are used.
        earlier = range(1, point.config.tasks) if keep_every else ()
        PointFolder(out, point).add(result, weights if point.config.search is None else None, earlier)
