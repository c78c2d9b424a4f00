"""From an experiment's file to fleets, and the plan that all processes of a store agree on.

The first sweep writes the plan with its fleets; others of the same experiment take the fleets as they are there,
whatever their own number of workers. A store has one plan at a time: another one takes its place when nobody works on
the first any more, and goes on from the states that it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kenyon.experiments.benchmarks import find_benchmark, load_benchmark_file
from kenyon.experiments.config_file import asked, read_config
from kenyon.experiments.fleets import crews, pieces
from kenyon.experiments.grid import Cell, Point
from kenyon.experiments.runner import Plan, check_fleet, missing_of, plan
from kenyon.methods import find_method
from kenyon.sweep.leases import Leases
from kenyon.sweep.orders import DONE, Fleet, Order, Outcome
from kenyon.sweep.record import Record, identity_of_plans, wait_until_unused
from kenyon.sweep.settling import RESULT, settle
from kenyon.sweep.space import FLEETS, MARKS, Space, check_space

SHARES = 2  # fleets a worker, if there are runs for so many: more would balance better and use each device less well


@dataclass(frozen=True)
class Sweep:
    """What is asked for, and the fleets that are not finished."""

    space: Space
    plans: dict[str, Plan]  # by benchmark
    fleets: tuple[Fleet, ...]
    files: tuple[str, ...] = ()  # that define benchmarks of the user's own

    def order(self, fleet: Fleet, over: bytes = b"") -> Order:
        same = next(iter(self.plans.values()))  # in all of them
        return Order(
            self.space.address,
            fleet,
            None if same.data is None else same.data.absolute(),
            self.files,
            same.keep_every,
            same.deterministic,
            over,
        )

    def missing(self) -> list[Cell]:
        """What is not finished, as the store has it now."""
        for name in self.plans:
            self.space.pull(name, RESULT)
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
    wanted = asked(read_config(config), None, None, None, {})
    for method in wanted.methods:
        find_method(method)
    files = tuple(str(Path(name).absolute()) for name in wanted.benchmarks if name.endswith(".py"))
    names = [load_benchmark_file(Path(name)) if name.endswith(".py") else name for name in wanted.benchmarks]
    for name in names:
        find_benchmark(name)
    check_space(space)
    for name in names:
        space.pull(name, RESULT)
    plans = {
        name: plan(
            name,
            wanted.methods,
            wanted.seeds,
            tasks=tasks,
            overrides=wanted.settings,
            device="cpu",  # of the plan alone: every worker has its own
            data=data,
            out=space.local,
            fwt=fwt,
            fleet=fleet,
            keep=keep,
            deterministic=deterministic,
        )
        for name in names
    }
    with Leases(space).holding("plan"):
        fleets = _agree(space, plans, check_fleet(fleet), workers, tell)
    return Sweep(space, plans, tuple(fleets), files)


def _agree(space: Space, plans: dict[str, Plan], most: int, workers: int, tell: Callable[[str], None]) -> list[Fleet]:
    """The fleets that are not finished, as the store's plan has them; where there is none, or another, a new plan."""
    identity, there = identity_of_plans(plans), Record.load(space)
    if there is not None and there.identity != identity:
        wait_until_unused(space, there, tell)
        for name in space.names(FLEETS):
            space.pull(f"{FLEETS}/{name}")
            settle(space, f"{FLEETS}/{name}")
        space.remove(MARKS)
        there = None
    every = {Fleet.key(cell): cell for cell in all_cells(plans)}
    missing = {Fleet.key(cell): cell for cell in missing_cells(plans)}
    recorded = [] if there is None else [Fleet(tuple(every[key] for key in keys)) for keys in there.cells]
    unplanned = set(missing).difference(*(fleet.keys for fleet in recorded))
    new = cut([cell for key, cell in missing.items() if key in unplanned], most, workers)
    if there is None or new:
        Record.of(identity, plans, [*recorded, *new]).save(space)
    unfinished = []
    for fleet in (*recorded, *new):
        if missing.keys().isdisjoint(fleet.keys):
            if Outcome.load(space, fleet.id) is None:
                Outcome(DONE).save(space, fleet.id)
        else:
            space.remove(f"{MARKS}/{fleet.id}")  # what came to an end without all of its runs is tried again
            unfinished.append(fleet)
    return unfinished


def cut(cells: Sequence[Cell], most: int, workers: int) -> list[Fleet]:
    """Fleets of at most `most` runs, and of fewer where workers would otherwise stand idle."""
    if workers > 1:
        most = min(most, max(1, -(-len(cells) // (SHARES * workers))))
    return [Fleet(piece.cells) for crew in crews(cells, []) for piece in pieces(crew, most)]


def all_cells(plans: dict[str, Plan]) -> list[Cell]:
    return [Cell(point, seed) for one, point in _points(plans) for seed in one.seeds]


def missing_cells(plans: dict[str, Plan]) -> list[Cell]:
    return [cell for one, point in _points(plans) for cell in missing_of(one.out, [point], one.seeds)]


def _points(plans: dict[str, Plan]) -> Iterator[tuple[Plan, Point]]:
    for one in plans.values():
        for points in one.methods:
            for point in points:
                yield one, point
