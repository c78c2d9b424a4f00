"""Unfinished fleets on disk: which runs each saved state holds, and which state a run goes on from.

A state lives in the folder of its point, or in the method's when its runs are of several points. Runs share nothing,
so a state is worth as much for some of its runs as for all: whatever was finished, asked for or split since, every
run goes on from the most advanced state that holds it, and a state is removed when all of its runs are finished. The
state before a state is one more that holds its runs. One that cannot be used is set aside, and the rest serve.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from kenyon.experiments.grid import AnyCell, AnyPoint, C, CellOf
from kenyon.experiments.results import point_name
from kenyon.experiments.store import PointFolder, method_folder, settled
from kenyon.training.checkpoint import Position, StateError, before_path, check_state, read_head
from kenyon.utils.files import set_aside
from kenyon.utils.progress import reporter


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

    def rows(self, cells: Iterable[AnyCell]) -> list[int]:
        places = {key: row for row, key in enumerate(self.keys)}
        return [places[_cell_key(cell)] for cell in cells]


def _key(config: dict[str, Any], point: dict[str, Any], seed: int) -> Hashable:
    """What makes a run that run. By value: 1000 and 1000.0 are the same setting."""
    flat = {name: tuple(value) if isinstance(value, list) else value for name, value in settled(config).items()}
    return point_name(point), frozenset(flat.items()), seed


def _cell_key(cell: AnyCell) -> Hashable:
    return _key(cell.config.as_dict(), cell.point.varied, cell.seed)


def identity_of(cells: Sequence[AnyCell]) -> str:
    """Every run's configuration and seed, in the order of the rows; a point's settings in the order of its name."""
    shares: list[dict[str, Any]] = []
    for _, same in groupby(cells, key=lambda cell: cell.point.name):
        some = list(same)
        point = some[0].point
        shares.append({"config": point.config.as_dict(), "seeds": [cell.seed for cell in some]})
        if point.varied:
            shares[-1]["point"] = point.varied
    return json.dumps(shares[0] if len(shares) == 1 else {"points": shares})


def state_path(out: Path, cells: Sequence[AnyCell]) -> Path:
    names = {cell.point.name for cell in cells}
    first = cells[0].point
    folder = PointFolder(out, first).path if len(names) == 1 else method_folder(out, first)
    digest = hashlib.sha256(identity_of(cells).encode()).hexdigest()[:8]
    return folder / f"state-{digest}.safetensors"


def read_state(path: Path) -> State | None:
    """None: a state, but not of an experiment."""
    head = read_head(path)
    try:
        identity, position = json.loads(head["identity"]), Position.from_json(head["position"])
        shares = identity.get("points", [identity])
        if not all({"config", "seeds"} <= set(share) for share in shares):
            check_state(path, head)  # or it has changed, and was of one
            return None
        state = State(
            path,
            head["identity"],
            tuple(Share(share["config"], share["seeds"], share.get("point", {})) for share in shares),
            (position.phase, position.epoch),
        )
        if len(set(state.keys)) != len(position.diverged):
            raise ValueError("it names other runs than it holds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(path, f"it is damaged or no state at all ({error})") from error
    return state


def usable(path: Path) -> State | None:
    """The state at a path. One that cannot be used is set aside, and said so."""
    try:
        return read_state(path)
    except StateError as problem:
        put_aside(problem)
        return None


def put_aside(problem: StateError) -> None:
    """Never removed: somebody may want to look. What other states hold of its runs goes on from there."""
    path = problem.path
    if not path.exists():
        return  # another process was faster
    before = before_path(path)
    instead = f"{before.name} is used instead" if before.exists() else "runs that no other state holds begin anew"
    aside = set_aside(path)
    reporter().notice(
        f"{path} cannot be used: {problem.reason}. It was set aside as {aside.name}; {instead}. Results that are "
        "finished stay."
    )


def find_states(out: Path, points: Sequence[AnyPoint]) -> list[State]:
    """All states that may hold runs of these points of one method."""
    folders = dict.fromkeys([method_folder(out, points[0]), *(PointFolder(out, point).path for point in points)])
    paths = (path for folder in folders for path in sorted(folder.glob("state-*.safetensors")))
    return [state for path in paths if (state := usable(path)) is not None]


def check_states(out: Path, points: Sequence[AnyPoint]) -> None:
    """Before anything is trained: what is unfinished was begun with the same configuration."""
    remove_finished(out, points)  # killed between saving a result and removing the state
    asked = {point.name: PointFolder(out, point) for point in points}
    for state in find_states(out, points):
        for share in state.shares:
            if (name := point_name(share.point)) in asked:
                asked[name].check_same(share.config, begun=state.path)


def remove_finished(out: Path, points: Sequence[AnyPoint]) -> list[Path]:
    """Remove the states whose runs all stand in results, and say which."""
    removed = []
    for state in find_states(out, points):
        if all(_finished(out, points[0], share) for share in state.shares):
            try:
                check_state(state.path, read_head(state.path))  # that it says whose it is, and not what it has become
            except StateError as problem:
                put_aside(problem)
                continue
            with contextlib.suppress(OSError):  # one that stays is found the next time
                state.path.unlink(missing_ok=True)
            removed.append(state.path)
    return removed


def _finished(out: Path, like: AnyPoint, share: Share) -> bool:
    """`like`: some point of the same method."""
    result = PointFolder(out, replace(like, varied=share.point)).result()
    return result is not None and {run.seed for run in result.runs}.issuperset(share.seeds)


def claims(
    states: Sequence[State], cells: Sequence[CellOf[C]]
) -> tuple[list[tuple[State, list[CellOf[C]]]], list[CellOf[C]]]:
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
