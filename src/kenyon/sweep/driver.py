"""The loop of a sweep: fleets are given to a place that trains them, longest first, until all have ended.

Predicted costs follow those of finished fleets. Any number of sweeps may use one store: a fleet that another has
claimed is watched, and trained here from its last state if its worker is gone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from kenyon.errors import KenyonError, ResultsError
from kenyon.experiments.grid import RunSpec
from kenyon.experiments.results import RESULTS
from kenyon.experiments.runner import gather
from kenyon.experiments.scheduler import commands_for
from kenyon.experiments.store import PointFolder, files_below
from kenyon.sweep.costs import Costs, Seen, Work, seen_in
from kenyon.sweep.jobs import DIED, FAILED, STOPPED, TAKEN, Fleet, Order, Outcome
from kenyon.sweep.leases import DRIVER, Leases
from kenyon.sweep.merge import merge_fleet, name_of, pull_results, results_lease
from kenyon.sweep.plan import Sweep
from kenyon.sweep.storage import MARKS, Storage
from kenyon.training.checkpoint import Interrupted
from kenyon.utils.files import MACHINE_ID

ENOUGH = 1.1  # growth of the number of finished fleets after which the queue is sorted again


class Queue:
    """Fleets that wait for a worker, longest first by predicted cost."""

    def __init__(self, storage: Storage, fleets: Sequence[Fleet]) -> None:
        self.storage = storage
        self.works = {fleet.id: Work.of(fleet.runs[0].config, len(fleet.runs)) for fleet in fleets}
        self.waiting = list(fleets)
        self.first: list[Fleet] = []  # begun before, and resumed first
        self.seen = seen_in_store(storage)
        self.known: set[str] = set()  # marks among them
        self.sorted_with = 0
        self._sort()

    def __len__(self) -> int:
        return len(self.first) + len(self.waiting)

    def next(self) -> Fleet:
        return (self.first or self.waiting).pop(0)

    def put_first(self, fleet: Fleet) -> None:
        self.first.append(fleet)

    def learn(self, marks: Iterable[str]) -> None:
        """Update predicted costs from the marks of finished fleets."""
        for id in set(marks) & self.works.keys() - self.known:
            self.known.add(id)
            mark = Outcome.load(self.storage, id)
            if mark is not None and mark.seconds > 0:
                self.seen.append(Seen(self.works[id], mark.device, mark.seconds))
        if len(self.seen) > ENOUGH * self.sorted_with:
            self._sort()

    def _sort(self) -> None:
        self.sorted_with = len(self.seen)
        costs = Costs([self.works[fleet.id] for fleet in self.waiting], self.seen).seconds
        cost = {fleet.id: seconds for fleet, seconds in zip(self.waiting, costs, strict=True)}
        self.waiting.sort(key=lambda fleet: -cost[fleet.id])


def seen_in_store(storage: Storage) -> list[Seen]:
    """Return the finished fleets of all results in the store. Results that cannot be read are skipped."""
    seen: list[Seen] = []
    for kind in RESULTS:
        for path in files_below(storage.local, kind.FILE):
            with suppress(KenyonError):
                seen += seen_in(kind.load(path))
    return seen


LIVES = 3  # workers that may die with one fleet before it is left out


class Place(Protocol):
    """A place that trains fleets: this process, other processes, or a cluster."""

    @property
    def busy(self) -> int:
        """The number of orders that were started and not returned by `finished`."""
        ...

    @property
    def free(self) -> bool:
        """True if another order may be started."""
        ...

    def start(self, order: Order) -> None: ...

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        """Return the orders that ended, after waiting at most `seconds` for one."""
        ...

    def stop(self) -> None:
        """Save the states of running orders, end them, and wait for that."""
        ...

    def close(self) -> None:
        """End all running orders at once."""
        ...


def carry_out(
    sweep: Sweep,
    place: Place,
    *,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Train until every fleet has a mark. When `stop` returns True, states are saved and Interrupted raised; the same
    call continues from there. `watch` is called repeatedly.
    """
    storage, leases = sweep.storage, Leases(sweep.storage)
    queue, deaths = Queue(storage, sweep.fleets), Counter[str]()
    elsewhere: dict[str, Fleet] = {}  # claimed by others
    over: dict[str, bytes] = {}  # expired leases of others
    with ExitStack() as closing:
        own = leases.claim(f"{DRIVER}{MACHINE_ID}-{os.getpid()}")
        if own is not None:
            closing.enter_context(own.beating())
        closing.callback(leases.tidy)
        closing.callback(place.close)
        while queue or elsewhere or place.busy:
            if stop():
                place.stop()
                raise Interrupted
            while queue and place.free:
                fleet = queue.next()
                place.start(sweep.order(fleet, over.pop(fleet.id, b"")))
            for order, outcome in place.finished(storage.pause):
                fleet = order.fleet
                deaths[fleet.id] += outcome.end == DIED
                if outcome.end == FAILED or deaths[fleet.id] == LIVES:
                    _give_up(sweep, fleet, outcome)
                elif outcome.end == TAKEN:
                    elsewhere[fleet.id] = fleet
                elif outcome.end in (STOPPED, DIED):
                    queue.put_first(fleet)
            marks = set(storage.names(MARKS))
            queue.learn(marks)
            for id in [*elsewhere]:
                if id in marks:
                    del elsewhere[id]
                elif (contents := leases.over(id)) is not None:
                    over[id] = contents
                    queue.put_first(elsewhere.pop(id))
            watch()


def _give_up(sweep: Sweep, fleet: Fleet, outcome: Outcome) -> None:
    """Move the states of a fleet next to the results, where `kenyon run` resumes them, and mark it as failed."""
    with suppress(ResultsError, OSError):  # files that cannot be moved stay
        sweep.storage.pull(fleet.folder)
        merge_fleet(sweep.storage, fleet.folder)
    why = outcome.why or f"Its worker died {LIVES} times, possibly of too little memory on the host."
    Outcome(FAILED, why).save(sweep.storage, fleet.id)


class Unfinished(KenyonError):
    """Some runs of a sweep could not be trained; all others are finished, and in `results`."""

    def __init__(
        self, reasons: dict[str, list[RunSpec]], folder: Path | None, results: dict[str, dict[str, Any]]
    ) -> None:
        """`folder`: of the results, if `kenyon run` can write to it."""
        self.results = results
        count = sum(map(len, reasons.values()))
        lines = [f"{count} {'run is' if count == 1 else 'runs are'} missing. The same command tries them again."]
        if folder is not None:
            lines[0] += " Or one by one:"
        for why, runs in reasons.items():
            lines += [why, *(commands_for(runs, folder) if folder else ())]
        super().__init__("\n".join(lines))


def collect(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return the results by benchmark and label. Raises Unfinished if some are missing."""
    storage, leases = sweep.storage, Leases(sweep.storage)
    missing = {Fleet.key(run): run for run in sweep.missing()}
    found: dict[str, dict[str, Any]] = {}
    for name, plan in sweep.plans.items():
        found[name] = {}
        for points in plan.methods:
            with leases.holding(results_lease(points[0])):
                pull_results(storage, points)  # again, under the lease
                found[name] |= gather(plan, points)
                for point in points:
                    storage.push(name_of(storage, PointFolder(storage.local, point).result_path))
    reasons: dict[str, list[RunSpec]] = {}
    for fleet in sweep.fleets:
        mark = Outcome.load(storage, fleet.id)
        lost = [run for key in fleet.keys if (run := missing.pop(key, None))]
        if lost:
            reasons.setdefault((mark and mark.why) or "They are not in the store any more.", []).extend(lost)
    if reasons:
        raise Unfinished(reasons, storage.local if storage.is_folder else None, found)
    return found
