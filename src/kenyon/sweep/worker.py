"""What a worker does with an order: claim the fleet, train what is missing, add it to the results.

The same function in this process, in others, and on other machines. What ends it leaves the fleet's last state in the
store, for whoever claims it next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from kenyon.benchmarks.registry import load_benchmark_file
from kenyon.errors import KenyonError
from kenyon.experiments.grid import AnyCell
from kenyon.experiments.scheduler import Room
from kenyon.experiments.spec import Configured
from kenyon.experiments.store import PointFolder
from kenyon.experiments.training import CrewOf
from kenyon.experiments.unfinished import State, find_states
from kenyon.rl.runner import GamesProgress, Silent
from kenyon.rl.trainer import Agents
from kenyon.sweep.jobs import DONE, FAILED, STOPPED, TAKEN, Order, Outcome, kind_of
from kenyon.sweep.leases import Lease, Leases
from kenyon.sweep.merge import pull_results, remove_begun, settle
from kenyon.sweep.storage import BEGUN, Space, open_space
from kenyon.training import Interrupted, Trainer, choose_device


def work(order: Order, *, progress: GamesProgress | None = None, stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Whatever goes wrong with a fleet is told as its outcome: the others go on."""
    try:
        for file in order.files:
            _load(file)
        space = opened(order.store)
        lease = Leases(space).claim(order.fleet.id, order.over)
        if lease is None:
            return Outcome(TAKEN)
        with lease.beating(lambda: space.push(order.fleet.folder)):
            return _work(order, space, lease, progress or Silent(), stop)
    except KenyonError as error:
        return Outcome(FAILED, str(error))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")


def _work(order: Order, space: Space, lease: Lease, progress: GamesProgress, stop: Callable[[], bool]) -> Outcome:
    fleet, device = order.fleet, choose_device(order.device)
    room, own = Room(len(fleet.cells), device), space.local / fleet.folder
    told = Told(lease, len(fleet.cells), progress)
    if (mark := Outcome.load(space, fleet.id)) is not None:
        return mark  # another was faster
    kind = kind_of(fleet.benchmark)

    def train(crew: CrewOf[Configured]) -> None:
        kind.train(crew, order, device=device, out=own, progress=told, stop=lambda: stop() or lease.lost)

    def missing() -> list[AnyCell]:
        finished = _finished(own, fleet.cells) | _finished(space.local, fleet.cells)
        return [cell for cell in fleet.cells if (cell.point.label, cell.seed) not in finished]

    def begun() -> list[State]:
        return [*find_states(own, fleet.points), *find_states(space.local, fleet.points)]

    space.pull(fleet.folder)
    pull_results(space, fleet.points)
    pull_results(space, fleet.points, "state-")
    told.before = len(fleet.cells) - len(missing())  # by others, before
    try:
        room.train_missing(missing, begun, own, train, told.fleet_split)
    except Interrupted:
        if lease.share and not lease.lost:
            space.write(f"{BEGUN}/{fleet.id}", f"{lease.share:.4f}".encode())
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
    space.remove(f"{BEGUN}/{fleet.id}")
    return outcome


class Told:
    """Tells a lease how much of its fleet is done, and passes everything on."""

    def __init__(self, lease: Lease, runs: int, inner: GamesProgress) -> None:
        self.lease, self.runs, self.inner = lease, runs, inner
        self.seconds = 0.0
        self.before = 0  # runs that are finished
        self.now = 0  # runs at work
        self.total = 1  # epochs or updates of these

    def fleet_starts(self, cells: Sequence[AnyCell], done: int, total: int) -> None:
        self.now, self.total = len(cells), total
        self._stands(done)
        self.inner.fleet_starts(cells, done, total)

    def epoch_done(self, trainer: Trainer) -> None:
        self._stands(trainer.done)
        self.inner.epoch_done(trainer)

    def update_done(self, agents: Agents) -> None:
        self._stands(agents.position.phase * agents.ppo.updates + agents.position.epoch)
        self.inner.update_done(agents)

    def _stands(self, done: float) -> None:
        """`done`: of epochs or updates."""
        self.lease.share = (self.before + self.now * min(done / self.total, 1.0)) / self.runs

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


def _finished(out: Path, cells: Sequence[AnyCell]) -> set[tuple[str, int]]:
    """By label and seed."""
    results = {cell.point.name: PointFolder(out, cell.point).result() for cell in cells}
    return {(result.label, run.seed) for result in results.values() if result for run in result.runs}
