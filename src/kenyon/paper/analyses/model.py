"""A trained network with the stream it learned: the input of analyses.

    model = Model.load("results", "digits", "caf-ewc", seed=0)
    model = Model.of_trainer(trainer, run=0)
    model = Model(net, theta[:1], stream)

Most runs have one network. Runs of independent learners have several, whose probabilities are averaged; runs with a
learner for every task have one per task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Source, Stream
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import Result, Run, point_name
from kenyon.experiments.scheduler import command_of
from kenyon.experiments.store import weights_path
from kenyon.experiments.training import build_net
from kenyon.experiments.weights import Weights, read_weights, rows_of
from kenyon.models import Net, Pictures
from kenyon.training import Fleet, Trainer, choose_device
from kenyon.training.device import Lanes, Runs, on_device
from kenyon.training.evaluation import Evaluation, chunk_of, evaluate, evaluate_members, member_seed
from kenyon.utils.threads import cpu_threads

ROOM = 1 << 28  # numbers that rows computed together may have: 1 GiB
WHOLE = 64  # minimum of samples computed together, when all rows are
MOST = 64  # rows computed together: more make no device busier


def rows_at_once(numbers: int) -> int:
    """Return how many rows of the given size are computed together."""
    return max(1, min(MOST, ROOM // numbers))


class Probe:
    """Forward passes of up to `rows` rows of weights on one stream, each row computed like a run in training."""

    def __init__(self, net: Net, stream: Stream, rows: int) -> None:
        execute = net.executor
        self.net, self.rows = net, rows
        self.fleet = Fleet(
            [stream] * rows, net.device, execute.input_channels, frame=execute.frame, by_reference=not net.small
        )
        self.lanes = Lanes(net.device, rows, together=net.together, threads=execute.threads)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Context for computing with this network."""
        with torch.no_grad(), on_device(self.net.device), cpu_threads(1 if self.net.small else None):
            yield

    def label_log_probabilities(self, theta: Tensor, part: str, task: int) -> Tensor:
        """Return log-probabilities of the true classes of a task's samples: rows (n, P) -> (n, N), n <= `rows`."""
        labels = getattr(self.fleet.streams[0].tasks[task], part).labels.to(self.net.device)
        head = self.net.heads_of([task])
        found = torch.zeros(self.rows, len(labels), device=self.net.device)

        def see(run: Runs, some: slice, rows: Tensor, images: Tensor | Pictures) -> None:
            logits = self.net.forward(rows, images, head).logits
            target = labels[some]
            log_p = logits.log_softmax(-1)[..., : len(target), :]
            found[run, some] = log_p.gather(-1, target.expand(log_p.shape[:-1]).unsqueeze(-1)).squeeze(-1)

        self._walk(theta, part, task, see)
        return found[: len(theta)]

    def vectors(self, theta: Tensor, part: str, task: int) -> Tensor:
        """Return the learners' vectors for a task's samples, without gates: (n, K, N, F). Heads take their sum."""
        size = len(getattr(self.fleet.streams[0].tasks[task], part))
        head = self.net.heads_of([task])
        found = torch.zeros(self.rows, self.net.learners, size, self.net.features, device=self.net.device)

        def see(run: Runs, some: slice, rows: Tensor, images: Tensor | Pictures) -> None:
            seen = self.net.vectors(rows, images, head)
            found[run, :, some] = seen[..., : found[:, :, some].shape[2], :].to(found.dtype)

        self._walk(theta, part, task, see)
        return found[: len(theta)]

    def _walk(
        self, theta: Tensor, part: str, task: int, see: Callable[[Runs, slice, Tensor, Tensor | Pictures], None]
    ) -> None:
        size = len(getattr(self.fleet.streams[0].tasks[task], part))
        chunk = chunk_of(self.net.input_shape)
        samples = self.fleet.samples(part, [task], multiple=min(chunk, -(-size // WHOLE) * WHOLE))
        asked = range(len(theta))
        if self.net.together and len(theta) < self.rows:  # a fixed number of rows; the added ones are ignored
            theta = torch.cat([theta, theta[:1].expand(self.rows - len(theta), -1)])

        def work(run: Runs) -> None:
            for start in range(0, size, chunk):
                stop = start + chunk if isinstance(run, slice) else min(start + chunk, size)
                index = samples.index[run, start:stop].contiguous()
                see(run, slice(start, min(stop, size)), theta[run], self.fleet.images(run, index))

        with self.ready():
            self.lanes.each(asked, work)


def thinned(stream: Stream, part: str, most: int) -> Stream:
    """Return the stream with at most `most` samples of a part of every task, evenly spread over it; 0: all."""
    if most == 0:
        return stream
    tasks = []
    for task in stream.tasks:
        split = getattr(task, part)
        if len(split) > most:
            chosen = torch.arange(most) * len(split) // most
            split = replace(split, index=split.index[chosen], labels=split.labels[chosen])
        tasks.append(replace(task, **{part: split}))
    return replace(stream, tasks=tuple(tasks))


Answers = Literal["shared", "apart", "per task"]
# Test samples that another device's arithmetic may classify differently: per cent of a task's, or this many.
TOLERANCE, FEW = 2.0, 3


@dataclass(frozen=True)
class Saved:
    """The files that a model was read from."""

    folder: Path  # of the result and the weights
    result: Result
    config: Config

    def weights(self, seed: int, after: int | None = None) -> Path:
        """Return the file of a run's weights, or raise an error that says how to make it."""
        path = weights_path(self.folder, seed, after)
        if path.is_file():
            return path
        if self.result.held_out:
            raise ResultsError(
                f"{self.folder} belongs to a search, which saves no weights. Run the settings it chose, and analyse "
                "that result."
            )
        seeds = [run.seed for run in self.result.runs]
        option = () if after is None else ("--keep-every-task",)
        command = command_of(self.config, seeds, "NEW-FOLDER", *option)
        when = "" if after is None else f" after task {after}"
        raise ResultsError(
            f"There is no {path}: the weights of seed {seed}{when} were not kept. `{command}` makes them, with the "
            "result, in a new folder."
        )

    def read(self, seed: int, after: int | None = None) -> Weights:
        """Read the weights of a run, which have to be those that its result names."""
        path = self.weights(seed, after)
        return read_weights(path, self.result.config, seed, self.result.weights.get(path.name))

    def has_every_task(self, seed: int) -> bool:
        """True if the weights after every task were saved. Joint training has no weights in between."""
        if self.config.build_method().schedule != "sequential":
            return False
        return all(weights_path(self.folder, seed, after).is_file() for after in range(1, self.config.tasks))


@dataclass(frozen=True, eq=False)
class Model:
    """A trained run to analyse: saved (`load`), live (`of_trainer`), or made of its parts."""

    net: Net
    rows: Tensor  # (M, P) weights: M = 1, or as many networks as the run has
    stream: Stream
    answers: Answers = "shared"  # predictions are by one network, by the mean of all, or by one network per task
    saved: Saved | None = None

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != self.net.layout.size:
            raise ConfigError(
                f"A model needs rows of weights (networks, {self.net.layout.size}), not {tuple(self.rows.shape)}."
            )

    @classmethod
    def load(
        cls,
        out: Path | str,
        benchmark: str,
        method: str,
        seed: int = 0,
        *,
        point: Mapping[str, Any] | None = None,
        data: Path | str | None = None,
        device: str = "auto",
    ) -> Model:
        """Load a run of OUT/BENCHMARK/METHOD; `point`: for a point of a grid, its values of the varied settings."""
        folder = Path(out) / benchmark / method / point_name(point or {})
        source = find_benchmark(benchmark).source.load(None if data is None else Path(data))
        return cls.of_result(folder, seed, source, choose_device(device))

    @classmethod
    def of_result(cls, folder: Path, seed: int, source: Source, device: torch.device) -> Model:
        """Load a run from the folder of a result, with a source that is already read."""
        result = Result.load(folder / "result.json")
        saved = Saved(folder, result, Config.from_dict(result.config))
        run = _run_of(result, seed, folder)
        config = saved.config
        stream = source.stream(seed, tasks=config.tasks, validation=config.training.validation)
        method = config.build_method()
        net = build_net(config, method, stream, device)
        answers: Answers = "apart" if method.apart else "per task" if method.schedule == "discrete" else "shared"
        weights = saved.read(seed)
        rows = rows_of(net, weights, method, config.architecture.learners)
        model = cls(net, rows, stream, answers, saved)
        if not weights.named:
            model.check(run, weights.path)
        return model

    @classmethod
    def of_trainer(cls, trainer: Trainer, run: int = 0) -> Model:
        """Make a model of one run of a trainer in its present state."""
        M = trainer.members
        if trainer.discrete is not None:
            return cls(trainer.net, trainer.discrete.learners[run].clone(), trainer.streams[run], "per task")
        rows = trainer.theta[run * M : (run + 1) * M].clone()
        return cls(trainer.net, rows, trainer.streams[run], "apart" if M > 1 else "shared")

    @property
    def seed(self) -> int:
        return self.stream.seed

    @property
    def tasks(self) -> range:
        return range(len(self.stream.tasks))

    @property
    def learners(self) -> int:
        """Number of learners or networks that predict a task."""
        return len(self.rows) if self.answers == "apart" else self.net.learners

    def rows_for(self, task: int) -> slice:
        """Return the networks that predict a task."""
        return slice(task, task + 1) if self.answers == "per task" else slice(None)

    @cached_property
    def probe(self) -> Probe:
        """A probe for the model's own rows."""
        return Probe(self.net, self.stream, 1 if self.answers == "per task" else len(self.rows))

    @cached_property
    def moved(self) -> Tensor:
        """(M, P) bool: the weights that take part in predictions, without unused classes of heads and without
        parameters of the method."""
        mask = torch.zeros(self.rows.shape, dtype=torch.bool, device=self.rows.device)
        mask[:, : self.net.layout.protected] = True
        for name in ("head.weight", "head.bias"):
            head = self.net.layout.view(mask, name)  # (M, T, C, ...)
            for task in self.tasks:
                place = self.net.head_of(task)
                head[self.rows_for(task), place, : self.net.class_counts[place]] = True
        return mask

    def initial(self) -> Tensor:
        """Return the initial weights (M, P), drawn again from the seed."""
        seeds = [member_seed(self.seed, m) for m in range(len(self.rows))]
        return self.net.initial(seeds)

    def after(self, task: int) -> Tensor:
        """Return the weights (M, P) after a number of tasks, if they were saved; after the last, the model's own."""
        if task == len(self.tasks):
            return self.rows
        if self.saved is None:
            raise ConfigError(
                "This model has no results folder to read its weights after every task from: give them as `after`."
            )
        config, weights = self.saved.config, self.saved.read(self.seed, after=task)
        return rows_of(self.net, weights, config.build_method(), config.architecture.learners)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The test of all tasks, with a leading axis of one run: accuracy (1, T), own_accuracy (1, T, K), ..."""
        net, probe = self.net, self.probe
        with probe.ready():
            if self.answers == "apart":
                M = len(self.rows)
                return evaluate_members(net, self.rows, probe.fleet, probe.lanes, range(M), M)
            if self.answers == "shared":
                return evaluate(net, self.rows, probe.fleet, probe.lanes, [0])
            each = [
                evaluate(net, self.rows[t : t + 1].contiguous(), probe.fleet, probe.lanes, [0], tasks=(t,))
                for t in self.tasks
            ]
        return Evaluation.joined(each)

    def check(self, run: Run, path: Path) -> None:
        """Raise an error unless the weights reach the accuracies of a saved run."""
        gaps = np.abs(self.evaluation.accuracy[0].double().numpy() - run.matrix[-1])
        sizes = np.array([len(task.test) for task in self.stream.tasks])
        gap = float(gaps.max())
        if not (gaps <= np.maximum(TOLERANCE, 100 * FEW / sizes)).all():
            raise ResultsError(
                f"{path} does not belong to its result: tested again, a task differs by {gap:.1f} per cent. Restore "
                "the result's own weights, or train it again in another folder."
            )

    def with_rows(self, rows: Tensor) -> Model:
        """Return the model with other weights."""
        return replace(self, rows=rows)


def _run_of(result: Result, seed: int, folder: Path) -> Run:
    runs = {run.seed: run for run in result.runs}
    if seed not in runs:
        there = ", ".join(map(str, runs)) or "none"
        raise ResultsError(f"{folder} has no run of seed {seed}; there are: {there}. Choose one of them.")
    if not runs[seed].complete:
        raise ResultsError(f"{folder}: the loss of seed {seed} diverged, so it has no weights. Choose another seed.")
    return runs[seed]
