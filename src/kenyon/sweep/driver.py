"""The fleets that nobody has begun, longest first, by what the cost of finished ones has taught so far.

The loop of a sweep: give fleets to a place that trains them until every fleet has come to an end.

Any number of sweeps may do this with one store. What another has claimed is left to it, and looked after: when its
worker is gone, the fleet is trained here, from its last state.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from kenyon.errors import KenyonError, ResultsError
from kenyon.experiments.grid import AnyCell
from kenyon.experiments.incomplete import commands_for
from kenyon.experiments.store import PointFolder, files_below
from kenyon.sweep.costs import Costs, Seen, Work, seen_in
from kenyon.sweep.jobs import DIED, FAILED, KINDS, STOPPED, TAKEN, Fleet, Order, Outcome, kind_of
from kenyon.sweep.leases import DRIVER, Leases
from kenyon.sweep.merge import name_of, pull_results, results_lease, settle
from kenyon.sweep.plan import Sweep
from kenyon.sweep.storage import MARKS, Folder, Space
from kenyon.training import Interrupted
from kenyon.utils.files import MACHINE_ID

ENOUGH = 1.1  # times as many finished fleets as at the last time: the order is made anew


class Queue:
    def __init__(self, space: Space, fleets: Sequence[Fleet]) -> None:
        self.space = space
        self.works = {fleet.id: Work.of(fleet.cells[0].config, len(fleet.cells)) for fleet in fleets}
        self.waiting = list(fleets)
        self.first: list[Fleet] = []  # begun before, and to be gone on with
        self.seen = seen_in_store(space)
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
        """From the marks that are there now."""
        for id in set(marks) & self.works.keys() - self.known:
            self.known.add(id)
            mark = Outcome.load(self.space, id)
            if mark is not None and mark.seconds > 0:
                self.seen.append(Seen(self.works[id], mark.device, mark.seconds))
        if len(self.seen) > ENOUGH * self.sorted_with:
            self._sort()

    def _sort(self) -> None:
        self.sorted_with = len(self.seen)
        costs = Costs([self.works[fleet.id] for fleet in self.waiting], self.seen).seconds
        cost = {fleet.id: seconds for fleet, seconds in zip(self.waiting, costs, strict=True)}
        self.waiting.sort(key=lambda fleet: -cost[fleet.id])


def seen_in_store(space: Space) -> list[Seen]:
    """What the results that are here tell; those that cannot be read, or whose methods are not known, nothing."""
    seen: list[Seen] = []
    for kind in KINDS:
        for path in files_below(space.local, kind.results.FILE):
            with suppress(KenyonError):
                seen += seen_in(kind.results.load(path), kind.configured)
    return seen


LIVES = 3  # workers that may die with one fleet before it is left out


class Place(Protocol):
    """Where fleets are trained: this process, others, or a cluster."""

    @property
    def busy(self) -> int:
        """Orders that were started, and whose outcome was not told yet."""
        ...

    @property
    def free(self) -> bool:
        """Whether another order may be started."""
        ...

    def start(self, order: Order) -> None: ...

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        """What has come to an end, waiting for it at most so long."""
        ...

    def stop(self) -> None:
        """Let what is under way end soon, with its states saved, and wait for it."""
        ...

    def close(self) -> None:
        """End at once whatever is still there."""
        ...


def carry_out(
    sweep: Sweep,
    place: Place,
    *,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Until every fleet has a mark. When `stop` says so, states are saved and Interrupted raised; doing the same
    again continues there. `watch` is called now and then.
    """
    space, leases = sweep.space, Leases(sweep.space)
    queue, deaths = Queue(space, sweep.fleets), Counter[str]()
    elsewhere: dict[str, Fleet] = {}  # claimed by others
    over: dict[str, bytes] = {}  # leases of others that are over
    with ExitStack() as closing:
        mine = leases.claim(f"{DRIVER}{MACHINE_ID}-{os.getpid()}")
        if mine is not None:
            closing.enter_context(mine.beating())
        closing.callback(leases.tidy)
        closing.callback(place.close)
        while queue or elsewhere or place.busy:
            if stop():
                place.stop()
                raise Interrupted
            while queue and place.free:
                fleet = queue.next()
                place.start(sweep.order(fleet, over.pop(fleet.id, b"")))
            for order, outcome in place.finished(space.pause):
                fleet = order.fleet
                deaths[fleet.id] += outcome.end == DIED
                if outcome.end == FAILED or deaths[fleet.id] == LIVES:
                    _give_up(sweep, fleet, outcome)
                elif outcome.end == TAKEN:
                    elsewhere[fleet.id] = fleet
                elif outcome.end in (STOPPED, DIED):
                    queue.put_first(fleet)
            marks = set(space.names(MARKS))
            queue.learn(marks)
            for id in [*elsewhere]:
                if id in marks:
                    del elsewhere[id]
                elif (said := leases.over(id)) is not None:
                    over[id] = said
                    queue.put_first(elsewhere.pop(id))
            watch()


def _give_up(sweep: Sweep, fleet: Fleet, outcome: Outcome) -> None:
    """Leave its states beside the results, where `kenyon run` goes on from them, and say that it ended."""
    with suppress(ResultsError, OSError):  # what cannot be moved stays where it is
        sweep.space.pull(fleet.folder)
        settle(sweep.space, fleet.folder)
    why = outcome.why or f"Its worker died {LIVES} times, perhaps for want of memory on the host."
    Outcome(FAILED, why).save(sweep.space, fleet.id)


class Unfinished(KenyonError):
    """Some runs of a sweep could not be trained; all others are finished, and here."""

    def __init__(
        self, reasons: dict[str, list[AnyCell]], folder: Path | None, results: dict[str, dict[str, Any]]
    ) -> None:
        """`folder`: of the results, where it is one that `kenyon run` can write to."""
        self.results = results
        count = sum(map(len, reasons.values()))
        lines = [f"{count} {'run is' if count == 1 else 'runs are'} missing. The same command tries them again."]
        if folder is not None:
            lines[0] += " Or one by one:"
        for why, cells in reasons.items():
            lines += [why, *(commands_for(cells, folder) if folder else ())]
        super().__init__("\n".join(lines))


def collect(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """The results, of games the scores, by benchmark and label. Raises Unfinished where there are not all."""
    space, leases = sweep.space, Leases(sweep.space)
    missing = {Fleet.key(cell): cell for cell in sweep.missing()}
    found: dict[str, dict[str, Any]] = {}
    for name, plan in sweep.plans.items():
        found[name] = {}
        for points in plan.methods:
            with leases.holding(results_lease(points[0])):
                pull_results(space, points)  # once more, when nobody else adds to them
                found[name] |= kind_of(name).gather(plan, points)
                for point in points:
                    space.push(name_of(space, PointFolder(space.local, point).result_path))
    reasons: dict[str, list[AnyCell]] = {}
    for fleet in sweep.fleets:
        mark = Outcome.load(space, fleet.id)
        lost = [cell for key in fleet.keys if (cell := missing.pop(key, None))]
        if lost:
            reasons.setdefault((mark and mark.why) or "They are not in the store any more.", []).extend(lost)
    if reasons:
        raise Unfinished(reasons, space.local if isinstance(space, Folder) else None, found)
    return found
