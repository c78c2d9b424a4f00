"""The fleets that nobody has begun, longest first, by what the cost of finished ones has taught so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from kenyon.errors import KenyonError
from kenyon.experiments.store import files_below
from kenyon.sweep.costs import Costs, Seen, Work, seen_in
from kenyon.sweep.kinds import KINDS
from kenyon.sweep.orders import Fleet, Outcome
from kenyon.sweep.space import Space

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
