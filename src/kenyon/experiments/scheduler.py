"""Which cells train together, and what happens when the device has no room for them."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from kenyon.experiments.grid import AnyCell, C, CellOf
from kenyon.experiments.training import CrewOf
from kenyon.experiments.unfinished import State, claims, put_aside, state_path, usable
from kenyon.training.checkpoint import StateError
from kenyon.training.device import NoRoom, out_of_memory, taken_by_others
from kenyon.utils.clock import Stopwatch

MOST = 128  # runs together unless told otherwise: beyond it a device is busy anyway, and results only come later
LONG = 2.0  # seconds of training after which memory is looked through on a CPU too


def crews(cells: Sequence[CellOf[C]], states: Sequence[State]) -> list[CrewOf[C]]:
    """Cells in crews: unfinished ones as they were begun, then all others of one structure together."""
    begun, rest = claims(states, cells)
    fresh: dict[str, list[CellOf[C]]] = {}
    for cell in rest:
        fresh.setdefault(cell.config.structure, []).append(cell)
    return [
        *(CrewOf(tuple(mine), state) for state, mine in begun),
        *(CrewOf(tuple(mine)) for mine in fresh.values()),
    ]


class Room:
    """How many runs train together: at most `most`, and less once the device has turned out to hold less.

    Runs share nothing and their random numbers are functions of the seed, so the numbers stay the same.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device = most, device
        self.without: list[AnyCell] = []  # runs that do not fit, not even alone
        self.reason = ""  # why the first of them does not
        self.short = ""  # what the last that did not fit lacked, where that is known

    def train(
        self,
        waiting: Sequence[CrewOf[C]],
        out: Path,
        train: Callable[[CrewOf[C]], None],
        split: Callable[[Sequence[CellOf[C]], int], None],
    ) -> None:
        """Train crews one after another, in halves where they do not fit; `split` is told of those.

        A run that does not fit alone is noted in `without`, with all of its structure; the rest goes on.
        """
        queue = deque(waiting)
        while queue:
            crew = queue.popleft()
            cells = crew.cells
            if len(cells) > self.most:
                queue.extendleft(reversed(pieces(crew, self.most)))
            elif not self._fits(crew, train):
                if len(cells) == 1:
                    queue = self._give_up(cells[0], queue)
                    continue
                self.most = (len(cells) + 1) // 2
                split(cells, self.most)
                path = state_path(out, cells)
                saved = usable(path) if path.exists() else None  # what the crew itself has saved is not lost
                queue.appendleft(replace(crew, begun=saved) if saved else crew)

    def train_missing(
        self,
        missing: Callable[[], Sequence[CellOf[C]]],
        begun: Callable[[], Sequence[State]],
        out: Path,
        train: Callable[[CrewOf[C]], None],
        split: Callable[[Sequence[CellOf[C]], int], None],
    ) -> None:
        """Train what is missing, from the states that were begun. One that turns out to be of no use is set aside."""
        while True:
            try:
                self.train(crews(missing(), begun()), out, train, split)
                return
            except StateError as problem:
                put_aside(problem)  # one less each time: the state before it serves, or none

    def _fits(self, crew: CrewOf[C], train: Callable[[CrewOf[C]], None]) -> bool:
        """Train a crew. False: there is no room for it, and nothing of it is left in memory."""
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        watch = Stopwatch()
        try:
            train(crew)
            fits = True
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            fits, self.short = False, error.short if isinstance(error, NoRoom) else taken_by_others(self.device)
        # Here, where the error with its frames is gone: a trainer refers to itself through its captured work, and
        # would stay in the device's memory until Python happens to look for such circles. Looking takes a tenth of a
        # second or more: too long only for what was small and quick.
        if stream is not None or not fits or watch.seconds > LONG:
            gc.collect()
        if stream is not None:
            torch.cuda.set_stream(stream)  # a capture that failed may have left its own
            # cuBLAS keeps a work space for every stream that ever used it.
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()
        return fits

    def _give_up(self, cell: CellOf[C], queue: deque[CrewOf[C]]) -> deque[CrewOf[C]]:
        """The queue without what needs as much room as this cell."""
        structure = cell.config.structure
        self.reason = self.reason or self.short
        self.without += [cell, *(c for crew in queue for c in crew.cells if c.config.structure == structure)]
        return deque(crew for crew in queue if crew.cells[0].config.structure != structure)

    def why(self) -> str:
        """Of the first run without room."""
        cell = self.without[0]
        arch, where = cell.config.architecture, str(self.device)
        demand, less = cell.config.demand
        if self.device.type == "cuda":
            where = torch.cuda.get_device_name(self.device)
        several = arch.learners > 1
        shape = f"{arch.learners} learners of width {arch.width}" if several else f"width {arch.width}"
        fewer = "fewer or narrower learners (learners=..., width=...)" if several else "a smaller width (width=...)"
        other = "another device (--device cpu)" if self.device.type == "cuda" else "a machine with more memory"
        short = f": {self.reason}" if self.reason else ""
        return (
            f"A single run of {cell.point.label} ({demand}, {shape}) does not fit into the "
            f"memory of {where}{short}. Use --set with {less} or {fewer}, or {other}. Everything else is finished "
            "and saved."
        )


def pieces(crew: CrewOf[C], most: int) -> list[CrewOf[C]]:
    """A crew in as few parts of at most so many runs as possible, nearly equal in size."""
    count = -(-len(crew.cells) // most)
    ends = [len(crew.cells) * part // count for part in range(count + 1)]
    return [replace(crew, cells=crew.cells[begin:end]) for begin, end in pairwise(ends)]
