"""What is measured on which device: a list of points, each a fleet standing at a task.

Every axis is swept around one base point (runs, learners, second task), where all pieces are also measured in turns
with plain code. What belongs to several sweeps is measured once; turns are a measurement of their own, for the two
disturb each other's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch

from kenyon.bench.subject import Piece
from kenyon.bench.timing import Effort
from kenyon.methods import LEARNERS
from kenyon.words import counted

Sweep = Literal["pieces", "runs", "learners", "tasks"]
METHODS = {"ewc": 1, "caf-ewc": LEARNERS}  # and their usual numbers of learners
SECOND = 2  # the first task with penalties: everything that a later one has


class FleetKey(NamedTuple):
    benchmark: str
    method: str
    runs: int
    learners: int

    def __str__(self) -> str:
        several = f", {self.learners} learners" if self.learners > 1 else ""
        return f"{self.benchmark} {self.method}, {counted(self.runs, 'run')}{several}"


@dataclass(frozen=True)
class Point:
    """A fleet at a task, and what is measured there, compared with plain code or not, for which sweeps."""

    fleet: FleetKey
    task: int  # counted from 1
    pieces: dict[tuple[Piece, bool], tuple[Sweep, ...]]


@dataclass(frozen=True)
class Extent:
    """How much of a benchmark is measured."""

    benchmark: str
    base_runs: int
    runs: tuple[int, ...]
    learners: tuple[int, ...]  # of caf-ewc
    tasks: tuple[int, ...]
    train: int  # images a class, of which a share is held out for validation
    test: int
    task_pieces: tuple[Piece, ...] = ("step", "importance")  # measured at every task of that sweep

    def fleets(self) -> dict[FleetKey, list[Point]]:
        """The points of each fleet in the order of their tasks. What several sweeps ask for is there once."""
        wanted: dict[FleetKey, dict[int, dict[tuple[Piece, bool], tuple[Sweep, ...]]]] = {}
        for fleet, task, piece, sweep in self._wishes():
            pieces, what = wanted.setdefault(fleet, {}).setdefault(task, {}), (piece, sweep == "pieces")
            pieces[what] = (*pieces.get(what, ()), sweep)
        return {
            fleet: [Point(fleet, task, pieces) for task, pieces in sorted(tasks.items())]
            for fleet, tasks in wanted.items()
        }

    def _wishes(self) -> Iterator[tuple[FleetKey, int, Piece, Sweep]]:
        for method, learners in METHODS.items():
            base = FleetKey(self.benchmark, method, self.base_runs, learners)
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


LATE = {"cpu": 70.0, "cuda": 120.0}  # seconds after which a bench hurries, to end in about two minutes


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
