"""The plan of a store, as a file: what was asked for, and into which fleets it was cut.

From an experiment's file to fleets, and the plan that all processes of a store agree on.

The first sweep writes the plan with its fleets; others of the same experiment take the fleets as they are there,
whatever their own number of workers. A store has one plan at a time: another one takes its place when nobody works on
the first any more, and goes on from the states that it left.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kenyon.benchmarks.registry import find_benchmark, load_benchmark_file
from kenyon.errors import ConfigError, ResultsError, unknown
from kenyon.experiments.grid import AnyCell, AnyPoint, CellOf
from kenyon.experiments.runner import Plan, check_fleet, missing_of
from kenyon.experiments.scheduler import crews, pieces
from kenyon.experiments.spec_file import Asked, asked, read_config
from kenyon.experiments.unfinished import check_states
from kenyon.methods import find_method
from kenyon.rl.suites import ARENAS
from kenyon.sweep.costs import Work
from kenyon.sweep.jobs import DONE, GAMES, IMAGES, AnyPlan, Fleet, Key, Kind, Options, Order, Outcome, kind_of
from kenyon.sweep.leases import EXPIRY, Leases
from kenyon.sweep.merge import settle
from kenyon.sweep.storage import BEGUN, FLEETS, MARKS, PLAN, Space, check_space
from kenyon.utils.files import MACHINE_ID
from kenyon.utils.formats import Formats, crc_of_json

FORMATS = Formats("plan of a sweep", 1)


@dataclass(frozen=True)
class Record:
    identity: str
    about: str  # for people
    runs: int  # of the plan, finished ones included
    fleets: list[str]  # their identities
    labels: list[str]
    works: list[Work]  # what each will cost
    cells: list[list[Key]]

    @classmethod
    def of(cls, identity: str, plans: Mapping[str, AnyPlan], fleets: Sequence[Fleet]) -> Record:
        methods = {point.config.method: None for plan in plans.values() for point in plan.points}
        runs = sum(len(points) * len(plan.seeds) for plan in plans.values() for points in plan.methods)
        return cls(
            identity,
            f"{', '.join(methods)} on {', '.join(plans)}",
            runs,
            [fleet.id for fleet in fleets],
            [fleet.label for fleet in fleets],
            [Work.of(fleet.cells[0].config, len(fleet.cells)) for fleet in fleets],
            [fleet.keys for fleet in fleets],
        )

    def save(self, space: Space) -> None:
        plan = asdict(self)
        body = {"format": FORMATS.present, "checksum": crc_of_json(plan), "plan": plan}
        space.write(PLAN, json.dumps(body).encode())

    @classmethod
    def load(cls, space: Space) -> Record | None:
        """None: the store has no plan."""
        data = space.read(PLAN)
        if data is None:
            return None
        try:
            body = FORMATS.read(json.loads(data), space.local / PLAN)
            plan = body["plan"]
            if body["checksum"] != crc_of_json(plan):
                raise ValueError("its checksum is wrong")
            works = [Work(**work) for work in plan["works"]]
            cells = [[(name, label, seed) for name, label, seed in keys] for keys in plan["cells"]]
            return cls(**plan | {"works": works, "cells": cells})
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ResultsError(
                f"{space.address}/{PLAN} is damaged ({error}). Remove it: the plan is made anew, and finished runs "
                "stay."
            ) from error


def identity_of_plans(plans: Mapping[str, AnyPlan]) -> str:
    """Of what is asked for, whatever part of it is finished and however it is cut."""
    body: list[Any] = []
    for plan in plans.values():
        points = [[point.config.as_dict(), point.varied] for some in plan.methods for point in some]
        of_images = [plan.keep_every, plan.deterministic] if isinstance(plan, Plan) else []
        body.append([points, plan.seeds, *of_images])
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def wait_until_unused(space: Space, there: Record, tell: Callable[[str], None]) -> None:
    """Before another plan takes its place. Leases of other machines that nobody renews any more take EXPIRY."""
    leases, told = Leases(space), False
    beats: dict[str, int] = {}
    while held := {what: holder for what, holder in leases.held().items() if what != "plan"}:
        for what, holder in held.items():
            if holder is None:
                continue
            if holder.machine == MACHINE_ID or holder.beat != beats.setdefault(what, holder.beat):
                raise ResultsError(
                    f"{space.address} is used by a sweep with another plan ({there.about}): {holder.name}, process "
                    f"{holder.process}, since {holder.since}. Wait until it has ended, or choose another store with "
                    "--out."
                )
        if not told:
            tell(f"Looking whether a sweep with another plan is still at work here, up to {EXPIRY:g} s.")
            told = True
        time.sleep(min(space.pause, 2.0))


SHARES = 2  # fleets a worker, if there are runs for so many: more would balance better and use each device less well


@dataclass(frozen=True)
class Sweep:
    """What is asked for, and the fleets that are not finished."""

    space: Space
    plans: dict[str, AnyPlan]  # by benchmark
    fleets: tuple[Fleet, ...]
    files: tuple[str, ...] = ()  # that define benchmarks of the user's own

    def order(self, fleet: Fleet, over: bytes = b"") -> Order:
        order, plan = Order(self.space.address, fleet, self.files, over=over), self.plans[fleet.benchmark]
        if not isinstance(plan, Plan):
            return order
        data = None if plan.data is None else plan.data.absolute()
        return replace(order, data=data, keep_every=plan.keep_every, deterministic=plan.deterministic)

    def missing(self) -> list[AnyCell]:
        """What is not finished, as the store has it now."""
        _pull(self.space, self.plans)
        return missing_cells(self.plans)


def plan_sweep(
    config: Path | str,
    space: Space,
    *,
    workers: int = 1,
    tasks: int | None = None,
    data: Path | str | None = None,
    fwt: bool = True,
    fleet: int | None = None,
    keep: str = "last",
    deterministic: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Sweep:
    """Everything is checked before anything is trained. `workers`: how many fleets will train at a time."""
    wanted = asked(read_config(config), None, None, None, {}, games=True)
    for method in wanted.methods:
        find_method(method)
    files = tuple(str(Path(name).absolute()) for name in wanted.benchmarks if name.endswith(".py"))
    names = [load_benchmark_file(Path(name)) if name.endswith(".py") else name for name in wanted.benchmarks]
    kinds = {name: kind_of(name) for name in names}
    for name, kind in kinds.items():
        if kind is IMAGES:
            find_benchmark(name)
    options = Options(fleet, tasks, None if data is None else Path(data), fwt, keep, deterministic)
    if GAMES not in kinds.values() and wanted.games is not None:
        raise ConfigError(f"{config}: games is for suites of games ({', '.join(ARENAS)}). Leave it out.")
    if IMAGES not in kinds.values():
        options.check_for_games(names)
    mine = _shared_out(wanted, kinds.values())
    check_space(space)
    _pull(space, names)
    plans = {name: kind.plan(name, mine[kind], space.local, options) for name, kind in kinds.items()}
    with Leases(space).holding("plan"):
        fleets = _agree(space, plans, check_fleet(fleet), workers, tell)
    return Sweep(space, plans, tuple(fleets), files)


def _shared_out(wanted: Asked, kinds: Iterable[Kind]) -> dict[Kind, Asked]:
    """What is asked of each kind: of the settings, those that one of its methods has."""
    known = {kind: {name for method in wanted.methods for name in kind.settings(method)} for kind in kinds}
    anywhere = set().union(*known.values())
    for name in wanted.settings:
        if name not in anywhere:
            raise unknown(f"setting of {' or '.join(wanted.methods)}", name, anywhere)
    return {
        kind: replace(wanted, settings={name: value for name, value in wanted.settings.items() if name in mine})
        for kind, mine in known.items()
    }


def _pull(space: Space, names: Iterable[str]) -> None:
    """The results of some benchmarks."""
    for name in names:
        space.pull(name, kind_of(name).results.FILE)


def _agree(
    space: Space, plans: dict[str, AnyPlan], most: int, workers: int, tell: Callable[[str], None]
) -> list[Fleet]:
    """The fleets that are not finished, as the store's plan has them; where there is none, or another, a new plan."""
    identity, there = identity_of_plans(plans), Record.load(space)
    if there is not None and there.identity != identity:
        wait_until_unused(space, there, tell)
        begun = [f"{FLEETS}/{name}" for name in space.names(FLEETS)]
        for folder in begun:
            space.pull(folder)
            for one in plans.values():
                for points in one.methods:
                    check_states(space.local / folder, points)  # begun with another configuration: nothing is moved
        for folder in begun:
            settle(space, folder)
        space.remove(MARKS)
        space.remove(BEGUN)
        there = None
    every = {Fleet.key(cell): cell for cell in all_cells(plans)}
    missing = {Fleet.key(cell): cell for cell in missing_cells(plans)}
    recorded = [] if there is None else [Fleet(tuple(every[key] for key in keys)) for keys in there.cells]
    unplanned = set(missing).difference(*(fleet.keys for fleet in recorded))
    new = cut([cell for key, cell in missing.items() if key in unplanned], most, workers)
    if there is None or new:
        Record.of(identity, plans, [*recorded, *new]).save(space)
    unfinished, left = [], set(space.names(FLEETS))
    for fleet in (*recorded, *new):
        if missing.keys().isdisjoint(fleet.keys):
            if fleet.id in left and Leases(space).over(fleet.id) is not None:
                space.remove(fleet.folder)  # killed between its last result and this
            if Outcome.load(space, fleet.id) is None:
                Outcome(DONE).save(space, fleet.id)
        else:
            space.remove(f"{MARKS}/{fleet.id}")  # what came to an end without all of its runs is tried again
            unfinished.append(fleet)
    return unfinished


def cut(cells: Sequence[AnyCell], most: int, workers: int) -> list[Fleet]:
    """Fleets of at most `most` runs, and of fewer where workers would otherwise stand idle."""
    if workers > 1:
        most = min(most, max(1, -(-len(cells) // (SHARES * workers))))
    return [Fleet(piece.cells) for crew in crews(cells, []) for piece in pieces(crew, most)]


def all_cells(plans: dict[str, AnyPlan]) -> list[AnyCell]:
    return [CellOf(point, seed) for one, point in _points(plans) for seed in one.seeds]


def missing_cells(plans: dict[str, AnyPlan]) -> list[AnyCell]:
    return [cell for one, point in _points(plans) for cell in missing_of(one.out, [point], one.seeds)]


def _points(plans: dict[str, AnyPlan]) -> Iterator[tuple[AnyPlan, AnyPoint]]:
    for one in plans.values():
        for points in one.methods:
            for point in points:
                yield one, point
