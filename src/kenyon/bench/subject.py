"""The library's side of a bench: an ensemble of runs on synthetic images, with the pieces of work that are timed.

Images are synthetic, in the shapes and sizes of a benchmark, so that measuring speed needs no download. Every use of
a `Trainer`'s internals by the bench is in this file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kenyon.bench.result import Piece
from kenyon.benchmarks.registry import Benchmark
from kenyon.data import Source
from kenyon.data.sources import Group
from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.training import build_trainer
from kenyon.methods.importance import GradientImportance
from kenyon.random import Purpose
from kenyon.training.evaluation import evaluate

SEED = 0


def synthetic(benchmark: Benchmark, train: int, test: int) -> Source:
    """Make `train` and `test` images of every class: a picture of its own under noise, so that it can be learned.

    R-CIFAR-100 itself has 500 and 100, the digits about 36 and 144.
    """
    counts, shape = benchmark.source.class_counts, benchmark.source.shape
    classes = sum(counts)
    labels = torch.arange(classes).repeat(train + test)
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randint(0, 128, (len(labels), *shape), dtype=torch.uint8, generator=generator)
    images += torch.randint(0, 128, (classes, *shape), dtype=torch.uint8, generator=generator).repeat(
        train + test, 1, 1, 1
    )
    starts = [sum(counts[:t]) for t in range(len(counts))]
    fixed = len(set(counts)) > 1  # runs of one ensemble have tasks of the same sizes in the same order
    return Source(
        name=benchmark.name,
        images=images,
        labels=labels,
        test=torch.arange(len(labels)) >= classes * train,
        class_names=tuple(map(str, range(classes))),
        groups=tuple(
            Group(f"task {t + 1}", tuple(range(start, start + count)), fixed)
            for t, (start, count) in enumerate(zip(starts, counts, strict=True))
        ),
        mean=(0.5,) * shape[0],
        std=(0.2,) * shape[0],
    )


State = dict[str, dict[str, Tensor]]  # theta, importance, anchor -> name -> values of one run


class Subject:
    """An ensemble of R runs at the beginning of a task."""

    def __init__(self, config: Config, source: Source, runs: int, device: torch.device) -> None:
        self.config, self.runs = config, runs
        self.trainer = build_trainer([RunSpec(GridPoint(config), seed) for seed in range(runs)], source, device)
        self.streams = self.trainer.fleet.streams
        self.begin(0)

    def begin(self, task: int) -> None:
        """Go to the beginning of a task (from 0), with anchors and importances as after earlier tasks.

        The importances are random, of the usual size: measuring them would cost more than what is timed.
        """
        t = self.trainer
        t.position.phase, t.position.epoch = task * len(t.method.stages), 0
        t.enter_phase()
        t.start_phase()
        t.engine.loader.fill(t.engine.samples)
        if task > 0:
            numbers = torch.rand(t.importance.shape, generator=torch.Generator().manual_seed(task))
            t.importance.copy_(1e-3 * numbers)
            t.anchor.copy_(t._protected(t.theta))

    @property
    def pieces(self) -> dict[Piece, Callable[[], object]]:
        return {"step": self.train_epoch, "importance": self.importance_pass, "evaluation": self.evaluation}

    @property
    def steps(self) -> int:
        """Training steps an epoch."""
        return self.trainer.engine.loader.steps

    @property
    def small(self) -> bool:
        """True if the network is so small that waking CPU threads costs more than it gains."""
        return self.trainer.net.small

    @property
    def dtype(self) -> torch.dtype:
        return self.trainer.net.dtype

    def images(self, piece: Piece) -> float:
        """Images that all runs together process in one training step, importance pass or evaluation."""
        task = self.trainer.tasks_before
        if piece == "evaluation":
            return sum(len(task.test) for stream in self.streams for task in stream.tasks)
        seen = sum(len(stream.tasks[task].train) for stream in self.streams)
        return seen / self.steps if piece == "step" else seen

    def train_epoch(self) -> None:
        t = self.trainer
        t.train_epoch(t.step, t.theta)
        t.position.epoch += 1

    @property
    def importance(self) -> GradientImportance:
        found = self.trainer.method.importance
        assert isinstance(found, GradientImportance)  # of every method that is timed
        return found

    def importance_pass(self) -> None:
        self.trainer.measure(self.importance, self.trainer.theta, Purpose.IMPORTANCE)

    def evaluation(self) -> Tensor:
        """Accuracy of every run on every task, (R, T) per cent."""
        t = self.trainer
        return evaluate(t.net, t.theta, t.fleet, t.engine.lanes, t.live).accuracy

    def penalty(self, run: int) -> Tensor:
        """Return the parameter penalties of a run, which a step applies as gradients, outside its loss."""
        t = self.trainer
        return sum((value[run] for value in t.penalties.values()), torch.zeros(()))

    def estimate(self, run: int) -> dict[str, Tensor]:
        """Return the estimates of the last importance pass by name, learners' with a leading learner axis."""
        return self._protected(self.trainer.estimate[run])

    def state(self, run: int) -> State:
        t = self.trainer
        return {
            "theta": t.net.layout.views(t.theta[run]),
            "importance": self._protected(t.importance[run]),
            "anchor": self._protected(t.anchor[run]),
        }

    def _protected(self, row: Tensor) -> dict[str, Tensor]:
        layout = self.trainer.net.layout
        return {name: layout.view(row, name) for name in self.trainer.net.backbone_names}
