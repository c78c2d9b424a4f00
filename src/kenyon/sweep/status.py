"""The state of a sweep, read from its store by any machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kenyon.errors import ResultsError
from kenyon.sweep.costs import Costs, Seen, simulate
from kenyon.sweep.jobs import Outcome
from kenyon.sweep.leases import Leases
from kenyon.sweep.plan import Record
from kenyon.sweep.storage import BEGUN, MARKS, Storage

DRAWS = 32  # schedules that the time left is estimated from
WAITING, AT_WORK, FINISHED, MISSING = "waiting", "at work", "finished", "missing"


@dataclass(frozen=True)
class Line:
    """The state of one fleet."""

    id: str
    label: str
    runs: int
    state: str
    share: float = 0.0
    where: str = ""  # it is trained
    why: str = ""  # some of its runs are missing
    seconds: float = 0.0  # that it took, or is likely to take


@dataclass(frozen=True)
class Status:
    about: str
    runs: int
    finished: int  # runs
    lines: list[Line]
    left: tuple[float, float, float] | None  # seconds: likely, and from the 10th to the 90th of a hundred such sweeps

    @property
    def over(self) -> bool:
        return all(line.state in (FINISHED, MISSING) for line in self.lines)

    def count(self, state: str) -> int:
        return Counter(line.state for line in self.lines)[state]


class Watch:
    """Reads the state of a store repeatedly, and every mark once."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.leases = storage, Leases(storage)
        self.marks: dict[str, Outcome] = {}

    def look(self) -> Status:
        record = Record.load(self.storage)
        if record is None:
            raise ResultsError(
                f"There is no sweep in {self.storage.address}. `kenyon sweep EXPERIMENT.toml` makes one."
            )
        there = set(self.storage.names(MARKS))
        self.marks = {id: mark for id, mark in self.marks.items() if id in there}
        for id in there - self.marks.keys():
            if (mark := Outcome.load(self.storage, id)) is not None:
                self.marks[id] = mark
        held = self.leases.held()
        of = dict(zip(record.fleets, record.works, strict=True))
        seen = [Seen(of[id], m.device, m.seconds) for id, m in self.marks.items() if id in of and m.seconds > 0]
        costs = Costs(record.works, seen)
        lines = []
        for id, label, work, seconds in zip(record.fleets, record.labels, record.works, costs.seconds, strict=True):
            mark, holder = self.marks.get(id), held.get(id)
            if mark is not None:
                state = MISSING if mark.lost(work.runs) else FINISHED
                lines.append(Line(id, label, work.runs, state, 1.0, why=mark.why, seconds=mark.seconds))
            elif id in held:
                where = f"{holder.name}, process {holder.process}" if holder else "unknown"
                share = holder.share if holder else 0.0
                lines.append(Line(id, label, work.runs, AT_WORK, share, where, seconds=float(seconds)))
            else:
                lines.append(Line(id, label, work.runs, WAITING, self._begun(id), seconds=float(seconds)))
        undone = sum(self.marks[line.id].lost(line.runs) if line.id in self.marks else line.runs for line in lines)
        return Status(record.about, record.runs, record.runs - undone, lines, _left(lines, costs, bool(seen)))

    def _begun(self, id: str) -> float:
        """Return the share of a waiting fleet that was done before."""
        try:
            return min(max(float(self.storage.read(f"{BEGUN}/{id}") or 0), 0.0), 1.0)
        except ValueError:  # damaged: it is for people
            return 0.0


def _left(lines: list[Line], costs: Costs, known: bool) -> tuple[float, float, float] | None:
    """Return the predicted time left. None: no fleet has finished, or none is being trained."""
    workers = sum(line.state == AT_WORK for line in lines)
    if not known or not workers:
        return None
    order = sorted(
        (number for number, line in enumerate(lines) if line.state in (WAITING, AT_WORK)),
        key=lambda number: (lines[number].state != AT_WORK, -lines[number].seconds),
    )
    rest = np.array([1.0 - lines[number].share for number in order])
    ends = [simulate(times[order] * rest, workers).seconds for times in costs.draws(DRAWS)]
    low, middle, high = np.quantile(ends, (0.1, 0.5, 0.9))
    return float(middle), float(low), float(high)
