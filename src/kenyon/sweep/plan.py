"""The plan of a sweep: from an experiment's file to fleets, on which all processes of a store agree.

The first sweep writes the plan with its fleets; others of the same experiment use these fleets, whatever their own
number of workers. A store has one plan at a time. Another replaces it when no sweep works on the first any more, and
resumes the states that it left.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kenyon.errors import ResultsError
from kenyon.experiments.config import is_suite
from kenyon.experiments.grid import RunSpec
from kenyon.experiments.results import GameResult, Result
from kenyon.experiments.runner import Plan, check_request, plan_all
from kenyon.experiments.scheduler import jobs_of, split_job
from kenyon.experiments.spec import SEEDS, merge_spec, read_spec, resolved_benchmarks
from kenyon.experiments.store import check_states
from kenyon.methods import find_method
from kenyon.sweep.costs import Work
from kenyon.sweep.jobs import DONE, Fleet, Key, Order, Outcome
from kenyon.sweep.leases import EXPIRY, Leases
from kenyon.sweep.merge import merge_fleet
from kenyon.sweep.storage import BEGUN, FLEETS, MARKS, PLAN, Storage, check_storage
from kenyon.utils.files import MACHINE_ID
from kenyon.utils.formats import Formats, crc_of_json

FORMATS = Formats("plan of a sweep", 1)


@dataclass(frozen=True)
class Record:
    """The plan of a store, as a file."""

    identity: str
    about: str  # for people
    runs: int  # of the plan, finished ones included
    fleets: list[str]  # their identities
    labels: list[str]
    works: list[Work]  # for predicted costs
    cells: list[list[Key]]

    @classmethod
    def of(cls, identity: str, plans: Mapping[str, Plan], fleets: Sequence[Fleet]) -> Record:
        methods = {point.config.method: None for plan in plans.values() for point in plan.points}
        runs = sum(len(points) * len(plan.seeds) for plan in plans.values() for points in plan.methods)
        return cls(
            identity,
            f"{', '.join(methods)} on {', '.join(plans)}",
            runs,
            [fleet.id for fleet in fleets],
            [fleet.label for fleet in fleets],
            [Work.of(fleet.runs[0].config, len(fleet.runs)) for fleet in fleets],
            [fleet.keys for fleet in fleets],
        )

    def save(self, storage: Storage) -> None:
        plan = asdict(self)
        body = {"format": FORMATS.present, "checksum": crc_of_json(plan), "plan": plan}
        storage.write(PLAN, json.dumps(body).encode())

    @classmethod
    def load(cls, storage: Storage) -> Record | None:
        """Read the plan. None: the store has none."""
        data = storage.read(PLAN)
        if data is None:
            return None
        try:
            body = FORMATS.read(json.loads(data), storage.local / PLAN)
            plan = body["plan"]
            if body["checksum"] != crc_of_json(plan):
                raise ValueError("its checksum is wrong")
            works = [Work(**work) for work in plan["works"]]
            cells = [[(name, label, seed) for name, label, seed in keys] for keys in plan["cells"]]
            return cls(**plan | {"works": works, "cells": cells})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ResultsError(
                f"{storage.address}/{PLAN} is damaged ({error}). Remove it: the plan is made again, and finished "
                "runs stay."
            ) from error


def identity_of_plans(plans: Mapping[str, Plan]) -> str:
    """Return a digest of the request, independent of finished runs and of the fleets."""
    body: list[Any] = []
    for plan in plans.values():
        points = [[point.config.as_dict(), point.varied] for some in plan.methods for point in some]
        body.append([points, plan.seeds, *([] if plan.games else [plan.keep_every, plan.deterministic])])
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def wait_until_unused(storage: Storage, there: Record, tell: Callable[[str], None]) -> None:
    """Wait until no sweep works on the plan, before it is replaced. Leases of dead processes on other machines take
    EXPIRY.
    """
    leases, noted = Leases(storage), False
    beats: dict[str, int] = {}
    while held := {what: holder for what, holder in leases.held().items() if what != "plan"}:
        for what, holder in held.items():
            if holder is None:
                continue
            if holder.machine == MACHINE_ID or holder.beat != beats.setdefault(what, holder.beat):
                raise ResultsError(
                    f"{storage.address} is used by a sweep with another plan ({there.about}): {holder.name}, process "
                    f"{holder.process}, since {holder.since}. Wait until it has ended, or choose another store with "
                    "--out."
                )
        if not noted:
            tell(f"Looking whether a sweep with another plan is still at work here, up to {EXPIRY:g} s.")
            noted = True
        time.sleep(min(storage.pause, 2.0))


SHARES = 2  # fleets for each worker: more would balance better and use each device less well


@dataclass(frozen=True)
class Sweep:
    """A request, and the fleets that are not finished."""

    storage: Storage
    plans: dict[str, Plan]  # by benchmark
    fleets: tuple[Fleet, ...]
    files: tuple[str, ...] = ()  # that define benchmarks of the user's own

    @property
    def space(self) -> Storage:
        """`storage`, by its name of version 0.1."""
        return self.storage

    def order(self, fleet: Fleet, over: bytes = b"") -> Order:
        """Return what a worker needs to train a fleet. `over`: contents of its lease, if that has expired."""
        plan = self.plans[fleet.benchmark]
        data = None if plan.data is None else plan.data.absolute()
        return Order(self.storage.address, fleet, self.files, data, plan.keep_every, plan.deterministic, over)

    def missing(self) -> list[RunSpec]:
        """Return the runs that are not finished, as the store has them now."""
        _pull(self.storage, self.plans)
        return [run for plan in self.plans.values() for run in plan.missing()]


def plan_sweep(
    config: Path | str,
    storage: Storage,
    *,
    workers: int = 1,
    tell: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Sweep:
    """Check a request, and cut what is missing into fleets. `workers`: how many train at a time.

    `options`: fields of `Experiment`: tasks, data, fwt, fleet, keep and deterministic.
    """
    request = merge_spec(read_spec(config), options)
    for method in request.methods:
        find_method(method)
    files = tuple(str(Path(name).absolute()) for name in request.benchmarks if name.endswith(".py"))
    request = replace(
        request,
        benchmarks=resolved_benchmarks(request.benchmarks),
        seeds=SEEDS if request.seeds is None else request.seeds,
        device="cpu",  # of the plan; each worker has its own
        out=storage.local,
    )
    check_request(request)
    check_storage(storage)
    _pull(storage, request.benchmarks)
    plans = plan_all(request)
    with Leases(storage).holding("plan"):
        fleets = _agree(storage, plans, next(iter(plans.values())).most, workers, tell)
    return Sweep(storage, plans, tuple(fleets), files)


def _pull(storage: Storage, names: Iterable[str]) -> None:
    """Pull the results of some benchmarks."""
    for name in names:
        storage.pull(name, GameResult.FILE if is_suite(name) else Result.FILE)


def _agree(
    storage: Storage, plans: dict[str, Plan], most: int, workers: int, tell: Callable[[str], None]
) -> list[Fleet]:
    """The fleets that are not finished, as the store's plan has them; where there is none, or another, a new plan."""
    identity, there = identity_of_plans(plans), Record.load(storage)
    if there is not None and there.identity != identity:
        wait_until_unused(storage, there, tell)
        begun = [f"{FLEETS}/{name}" for name in storage.names(FLEETS)]
        for folder in begun:
            storage.pull(folder)
            for one in plans.values():
                for points in one.methods:
                    check_states(storage.local / folder, points)  # before anything is moved
        for folder in begun:
            merge_fleet(storage, folder)
        storage.remove(MARKS)
        storage.remove(BEGUN)
        there = None
    every = {Fleet.key(run): run for plan in plans.values() for run in plan.runs}
    missing = {Fleet.key(run): run for plan in plans.values() for run in plan.missing()}
    recorded = [] if there is None else [Fleet(tuple(every[key] for key in keys)) for keys in there.cells]
    unplanned = set(missing).difference(*(fleet.keys for fleet in recorded))
    new = cut([run for key, run in missing.items() if key in unplanned], most, workers)
    if there is None or new:
        Record.of(identity, plans, [*recorded, *new]).save(storage)
    unfinished, left = [], set(storage.names(FLEETS))
    for fleet in (*recorded, *new):
        if missing.keys().isdisjoint(fleet.keys):
            if fleet.id in left and Leases(storage).over(fleet.id) is not None:
                storage.remove(fleet.folder)  # killed between its last result and this
            if Outcome.load(storage, fleet.id) is None:
                Outcome(DONE).save(storage, fleet.id)
        else:
            storage.remove(f"{MARKS}/{fleet.id}")  # a fleet that ended without all of its runs is tried again
            unfinished.append(fleet)
    return unfinished


def cut(runs: Sequence[RunSpec], most: int, workers: int) -> list[Fleet]:
    """Cut runs into fleets of at most `most`, and smaller ones where workers would be idle."""
    if workers > 1:
        most = min(most, max(1, -(-len(runs) // (SHARES * workers))))
    return [Fleet(part.runs) for job in jobs_of(runs, []) for part in split_job(job, most)]
