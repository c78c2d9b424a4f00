"""A worker: claims the fleet of an order, trains what is missing, and adds it to the results.

The function is the same in this process, in others and on other machines. Whatever ends it leaves the fleet's last
state in the store, for the process that claims it next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kenyon.benchmarks.registry import find_benchmark, load_benchmark_file
from kenyon.data import Source
from kenyon.errors import KenyonError
from kenyon.experiments.grid import RunSpec
from kenyon.experiments.progress import Progress, Silent
from kenyon.experiments.runner import train_job
from kenyon.experiments.scheduler import Scheduler
from kenyon.experiments.store import Job, PointFolder, SavedState, find_states
from kenyon.sweep.jobs import DONE, FAILED, STOPPED, TAKEN, Order, Outcome
from kenyon.sweep.leases import Lease, Leases
from kenyon.sweep.merge import merge_fleet, pull_results, remove_begun
from kenyon.sweep.storage import BEGUN, Storage, open_storage
from kenyon.training import Interrupted, Trainer, choose_device
from kenyon.utils.determinism import deterministic

if TYPE_CHECKING:
    from kenyon.rl.trainer import Agents


def work(order: Order, *, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Carry out an order. Errors become its outcome, so that other fleets are not affected."""
    try:
        for file in order.files:
            _load(file)
        storage = opened(order.store)
        lease = Leases(storage).claim(order.fleet.id, order.over)
        if lease is None:
            return Outcome(TAKEN)
        with lease.beating(lambda: storage.push(order.fleet.folder)):
            return _work(order, storage, lease, progress or Silent(), stop)
    except KenyonError as error:
        return Outcome(FAILED, str(error))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")


def _work(order: Order, storage: Storage, lease: Lease, progress: Progress, stop: Callable[[], bool]) -> Outcome:
    fleet, device = order.fleet, choose_device(order.device)
    scheduler, own = Scheduler(len(fleet.runs), device), storage.local / fleet.folder
    shown_to = LeaseProgress(lease, len(fleet.runs), progress)
    if (mark := Outcome.load(storage, fleet.id)) is not None:
        return mark  # another was faster

    def train(job: Job) -> None:
        with deterministic(order.deterministic):
            train_job(
                job,
                source=lambda: _source(fleet.benchmark, order.data),
                device=device,
                out=own,
                progress=shown_to,
                stop=lambda: stop() or lease.lost,
                keep_every=order.keep_every,
            )

    def missing() -> list[RunSpec]:
        finished = _finished(own, fleet.runs) | _finished(storage.local, fleet.runs)
        return [run for run in fleet.runs if (run.point.label, run.seed) not in finished]

    def begun() -> list[SavedState]:
        return [*find_states(own, fleet.points), *find_states(storage.local, fleet.points)]

    storage.pull(fleet.folder)
    pull_results(storage, fleet.points)
    pull_results(storage, fleet.points, "state-")
    shown_to.before = len(fleet.runs) - len(missing())  # by others, before
    try:
        scheduler.train_missing(missing, begun, own, train, shown_to.fleet_split)
    except Interrupted:
        if lease.share and not lease.lost:
            storage.write(f"{BEGUN}/{fleet.id}", f"{lease.share:.4f}".encode())
        return Outcome(TAKEN if lease.lost else STOPPED)
    finally:
        storage.push(fleet.folder)
    merge_fleet(storage, fleet.folder)
    remove_begun(storage, fleet.points)
    outcome = Outcome(
        DONE,
        scheduler.why() if scheduler.without else "",
        [(run.point.label, run.seed) for run in scheduler.without],
        round(shown_to.seconds, 2),
        torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    )
    outcome.save(storage, fleet.id)
    storage.remove(f"{BEGUN}/{fleet.id}")
    return outcome


class LeaseProgress:
    """Progress that also writes to a lease how much of its fleet is done."""

    def __init__(self, lease: Lease, count: int, inner: Progress) -> None:
        self.lease, self.count, self.inner = lease, count, inner
        self.seconds = 0.0
        self.before = 0  # runs that are finished
        self.now = 0  # runs at work
        self.total = 1  # epochs or updates of these

    def fleet_starts(self, runs: Sequence[RunSpec], done: int, total: int) -> None:
        self.now, self.total = len(runs), total
        self._stands(done)
        self.inner.fleet_starts(runs, done, total)

    def epoch_done(self, trainer: Trainer) -> None:
        self._stands(trainer.done)
        self.inner.epoch_done(trainer)

    def update_done(self, agents: Agents) -> None:
        self._stands(agents.position.phase * agents.ppo.updates + agents.position.epoch)
        self.inner.update_done(agents)

    def _stands(self, done: float) -> None:
        """`done`: of epochs or updates."""
        self.lease.share = (self.before + self.now * min(done / self.total, 1.0)) / self.count

    def fleet_ends(self, seconds: float) -> None:
        self.before += self.now
        self.seconds += seconds
        self.inner.fleet_ends(seconds)

    def fleet_split(self, runs: Sequence[RunSpec], most: int) -> None:
        self.inner.fleet_split(runs, most)


@lru_cache(maxsize=1)
def opened(store: str) -> Storage:
    """Open a store. A worker has one, and keeps the copies of its files."""
    return open_storage(store)


@lru_cache
def _load(file: str) -> str:
    return load_benchmark_file(Path(file))


@lru_cache(maxsize=1)
def _source(benchmark: str, data: Path | None) -> Source:
    """Read the images of a benchmark. They stay in memory from fleet to fleet."""
    return find_benchmark(benchmark).source.load(data)


def _finished(out: Path, runs: Sequence[RunSpec]) -> set[tuple[str, int]]:
    """Return the finished runs by label and seed."""
    points = {run.point.name: run.point for run in runs}.values()
    return {(point.label, seed) for point in points for seed in PointFolder(out, point).finished()}
