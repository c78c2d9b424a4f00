"""Unfinished fleets on disk: which runs each saved state holds, and which state a run goes on from.

A state lives in the folder of its point, or in the method's when its runs are of several points. Runs share nothing,
so a state is worth as much for some of its runs as for all: whatever was finished, asked for or split since, every
run goes on from the most advanced state that holds it, and a state is removed when all of its runs are finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kenyon.errors import ResultsError
from kenyon.experiments.grid import Cell, Point
from kenyon.experiments.labels import point_name
from kenyon.experiments.results import Result
from kenyon.experiments.store import PointFolder, method_folder, settled


@dataclass(frozen=True)
class Share:
    """The runs of one point in a state."""

    config: dict[str, Any]
    seeds: list[int]
    point: dict[str, Any]

    @property
    def keys(self) -> list[Hashable]:
        return [_key(self.config, self.point, seed) for seed in self.seeds]


@dataclass(frozen=True)
class State:
    path: Path
    identity: str
    shares: tuple[Share, ...]  # in the order of the rows
    reached: tuple[int, int]  # (phase, epoch)

    @property
    def keys(self) -> list[Hashable]:
        """One a row."""
        return [key for share in self.shares for key in share.keys]

    def rows(self, cells: Iterable[Cell]) -> list[int]:
        places = {key: row for row, key in enumerate(self.keys)}
        return [places[_cell_key(cell)] for cell in cells]


def _key(config: dict[str, Any], point: dict[str, Any], seed: int) -> Hashable:
    """What makes a run that run. By value: 1000 and 1000.0 are the same setting."""
    return point_name(point), frozenset(settled(config).items()), seed


def _cell_key(cell: Cell) -> Hashable:
    return _key(cell.config.as_dict(), cell.point.varied, cell.seed)


def identity_of(cells: Sequence[Cell]) -> str:
    """Every run's configuration and seed, in the order of the rows; a point's settings in the order of its name."""
    shares: list[dict[str, Any]] = []
    for _, same in groupby(cells, key=lambda cell: cell.point.name):
        some = list(same)
        point = some[0].point
        shares.append({"config": point.config.as_dict(), "seeds": [cell.seed for cell in some]})
        if point.varied:
            shares[-1]["point"] = point.varied
    return json.dumps(shares[0] if len(shares) == 1 else {"points": shares})


def state_path(out: Path, cells: Sequence[Cell]) -> Path:
    names = {cell.point.name for cell in cells}
    first = cells[0].point
    folder = PointFolder(out, first).path if len(names) == 1 else method_folder(out, first)
    digest = hashlib.sha256(identity_of(cells).encode()).hexdigest()[:8]
    return folder / f"state-{digest}.safetensors"


def read_state(path: Path) -> State | None:
    """None: a state, but not of an experiment."""
    try:
        with safe_open(path, framework="pt") as file:
            head = file.metadata() or {}
            identity, position = json.loads(head["identity"]), json.loads(head["position"])
            shares = identity.get("points", [identity])
            if not all({"config", "seeds"} <= set(share) for share in shares):
                return None
            return State(
                path,
                head["identity"],
                tuple(Share(share["config"], share["seeds"], share.get("point", {})) for share in shares),
                (position["phase"], position["epoch"]),
            )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{path} is damaged ({error}). Move it away: its fleet then starts anew, finished results stay."
        ) from error


def find_states(out: Path, points: Sequence[Point]) -> list[State]:
    """All states that may hold runs of these points of one method."""
    folders = dict.fromkeys([method_folder(out, points[0]), *(PointFolder(out, point).path for point in points)])
    paths = (path for folder in folders for path in sorted(folder.glob("state-*.safetensors")))
    return [state for path in paths if (state := read_state(path)) is not None]


def check_states(out: Path, points: Sequence[Point]) -> None:
    """Before anything is trained: what is unfinished was begun with the same configuration."""
    remove_finished(out, points)  # killed between saving a result and removing the state
    asked = {point.name: PointFolder(out, point) for point in points}
    for state in find_states(out, points):
        for share in state.shares:
            if (name := point_name(share.point)) in asked:
                asked[name].check_same(share.config)


def remove_finished(out: Path, points: Sequence[Point]) -> None:
    """Remove the states whose runs all stand in results."""
    for state in find_states(out, points):
        if all(_finished(method_folder(out, points[0]), share) for share in state.shares):
            state.path.unlink(missing_ok=True)


def _finished(folder: Path, share: Share) -> bool:
    path = folder / point_name(share.point) / "result.json"
    return path.exists() and {run.seed for run in Result.load(path).runs}.issuperset(share.seeds)


def claims(states: Sequence[State], cells: Sequence[Cell]) -> tuple[list[tuple[State, list[Cell]]], list[Cell]]:
    """Which of the cells go on from which state, and which begin anew.

    The most advanced state first; of equal ones that with fewest runs, which is a part that was trained apart.
    """
    left = {_cell_key(cell): cell for cell in cells}
    claimed = []
    for state in sorted(states, key=lambda state: (state.reached, -len(state.keys)), reverse=True):
        mine = [left.pop(key) for key in state.keys if key in left]
        if mine:
            claimed.append((state, mine))
    return claimed, list(left.values())
