"""What a worker does with an order: claim the fleet, train what is missing, add it to the results.

The same function in this process, in others, and on other machines. What ends it leaves the fleet's last state in the
store, for whoever claims it next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from kenyon.errors import KenyonError
from kenyon.experiments.benchmarks import find_benchmark, load_benchmark_file
from kenyon.experiments.fleets import Room
from kenyon.experiments.grid import AnyCell, Cell
from kenyon.experiments.progress import Progress, Silent
from kenyon.experiments.runner import REFERENCE
from kenyon.experiments.states import State, find_states
from kenyon.experiments.store import PointFolder
from kenyon.experiments.training import Crew, train_crew
from kenyon.streams import Source
from kenyon.sweep.leases import Lease, Leases
from kenyon.sweep.orders import DONE, FAILED, STOPPED, TAKEN, Order, Outcome
from kenyon.sweep.settling import pull_results, remove_begun, settle
from kenyon.sweep.space import Space, open_space
from kenyon.train import Interrupted, Trainer, choose_device
from kenyon.train.determinism import deterministic


def work(order: Order, *, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Whatever goes wrong with a fleet is told as its outcome: the others go on."""
    try:
        for file in order.files:
            _load(file)
        space = opened(order.store)
        lease = Leases(space).claim(order.fleet.id, order.over)
        if lease is None:
            return Outcome(TAKEN)
        with lease.beating(lambda: space.push(order.fleet.folder)), deterministic(order.deterministic):
            return _work(order, space, lease, progress or Silent(), stop)
    except KenyonError as error:
        return Outcome(FAILED, str(error))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")


def _work(order: Order, space: Space, lease: Lease, progress: Progress, stop: Callable[[], bool]) -> Outcome:
    fleet, device = order.fleet, choose_device(order.device)
    room, own = Room(len(fleet.cells), device), space.local / fleet.folder
    benchmark = fleet.cells[0].config.benchmark
    told = Told(lease, len(fleet.cells), progress)
    if (mark := Outcome.load(space, fleet.id)) is not None:
        return mark  # another was faster
    every = order.keep_every and fleet.cells[0].config.method != REFERENCE

    def train(crew: Crew) -> None:
        train_crew(
            crew,
            _source(benchmark, order.data),
            device=device,
            out=own,
            progress=told,
            stop=lambda: stop() or lease.lost,
            keep_every=every,
        )

    def missing() -> list[Cell]:
        finished = _finished(own, fleet.cells) | _finished(space.local, fleet.cells)
        return [cell for cell in fleet.cells if (cell.point.label, cell.seed) not in finished]

    def begun() -> list[State]:
        return [*find_states(own, fleet.points), *find_states(space.local, fleet.points)]

    space.pull(fleet.folder)
    pull_results(space, fleet.points)
    pull_results(space, fleet.points, "state-")
    try:
        room.train_missing(missing, begun, own, train, told.fleet_split)
    except Interrupted:
        return Outcome(TAKEN if lease.lost else STOPPED)
    finally:
        space.push(fleet.folder)
    settle(space, fleet.folder)
    remove_begun(space, fleet.points)
    outcome = Outcome(
        DONE,
        room.why() if room.without else "",
        [(cell.point.label, cell.seed) for cell in room.without],
        round(told.seconds, 2),
        torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )
    outcome.save(space, fleet.id)
    return outcome


class Told:
    """Tells a lease how much of its fleet is done, and passes everything on."""

    def __init__(self, lease: Lease, runs: int, inner: Progress) -> None:
        self.lease, self.runs, self.inner = lease, runs, inner
        self.seconds = 0.0
        self.before, self.now, self.total = 0, 0, 1  # runs that are finished, runs at work, epochs of these

    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None:
        self.now, self.total = len(cells), total
        self.inner.fleet_starts(cells, done, total)

    def epoch_done(self, trainer: Trainer) -> None:
        at = trainer.position
        part = (at.phase * trainer.training.epochs + at.epoch) / self.total
        self.lease.share = (self.before + self.now * min(part, 1.0)) / self.runs
        self.inner.epoch_done(trainer)

    def fleet_ends(self, seconds: float) -> None:
        self.before += self.now
        self.seconds += seconds
        self.inner.fleet_ends(seconds)

    def fleet_split(self, cells: Sequence[AnyCell], most: int) -> None:
        self.inner.fleet_split(cells, most)


@lru_cache(maxsize=1)
def opened(store: str) -> Space:
    """A worker has one store, and keeps what it has copied from it."""
    return open_space(store)


@lru_cache
def _load(file: str) -> str:
    return load_benchmark_file(Path(file))


@lru_cache(maxsize=1)
def _source(benchmark: str, data: Path | None) -> Source:
    """The images of one benchmark stay in memory from fleet to fleet."""
    return find_benchmark(benchmark).source.load(data)


def _finished(out: Path, cells: Sequence[Cell]) -> set[tuple[str, int]]:
    """By label and seed."""
    results = {cell.point.name: PointFolder(out, cell.point).result() for cell in cells}
    return {(result.label, run.seed) for result in results.values() if result for run in result.runs}
