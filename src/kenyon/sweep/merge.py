"""From a fleet's own folder into the results that all see.

A fleet writes into a folder of its own, so that workers never write one file. What it finished is then added to the
results, under a lease for a method's results, and what is there stays. Killed at any moment, it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kenyon.experiments.grid import AnyPoint, PointOf
from kenyon.experiments.results import Kept
from kenyon.experiments.store import PointFolder, method_folder
from kenyon.experiments.unfinished import remove_finished
from kenyon.sweep.jobs import KINDS, Kind
from kenyon.sweep.leases import Leases
from kenyon.sweep.storage import Space
from kenyon.utils.files import make_folder, sync_folder

FILES = tuple(kind.results.FILE for kind in KINDS)


def name_of(space: Space, path: Path) -> str:
    """Of a file or folder of the store, as the space has it."""
    return path.relative_to(space.local).as_posix()


def pull_results(space: Space, points: Sequence[AnyPoint], start: str | None = None) -> None:
    """What the store has of some points of one method: their results, or files that start otherwise."""
    first = points[0]
    space.pull(name_of(space, method_folder(space.local, first)), start or first.config.kept.FILE)


def results_lease(point: AnyPoint) -> str:
    """What to hold while the results of a point's method are added to."""
    return f"results-{point.config.benchmark}-{point.config.method}"


def settle(space: Space, folder: str) -> None:
    """Move everything from a fleet's folder to its place: weights, results, and states, if it has not finished."""
    own = space.local / folder
    results = {path.parent: _load(kind, path) for kind in KINDS for path in sorted(own.rglob(kind.results.FILE))}
    places = {here: PointFolder(space.local, point) for here, (point, _) in results.items()}
    if results:
        pull_results(space, [point for point, _ in results.values()])
    for path in sorted(path for path in own.rglob("*") if path.is_file() and path.name not in FILES):
        finished = places[path.parent].result() if path.parent in places else None
        if finished is None or not any(_belongs(path, run.seed) for run in finished.runs):
            _move(space, path, space.local / path.relative_to(own))
    if results:
        points = [point for point, _ in results.values()]  # of one method
        with Leases(space).holding(results_lease(points[0])):
            pull_results(space, points)
            for here, (_, result) in results.items():
                for origin in result.fleets:
                    places[here].add(result.restricted(origin.seeds))
                space.push(name_of(space, places[here].result_path))
    space.remove(folder)


def remove_begun(space: Space, points: Sequence[AnyPoint]) -> None:
    """States beside the results whose runs are all finished: of a `kenyon run`, or of an earlier plan."""
    for path in remove_finished(space.local, points):
        space.remove(name_of(space, path))


def _load(kind: Kind, path: Path) -> tuple[AnyPoint, Kept[Any, Any]]:
    result = kind.results.load(path)
    return PointOf(kind.configured(result.config), result.point), result


def _belongs(path: Path, seed: int) -> bool:
    return path.name.startswith((f"weights-{seed}.", f"weights-{seed}-"))


def _move(space: Space, path: Path, to: Path) -> None:
    if path.name.endswith(".tmp"):
        return
    make_folder(to.parent)
    path.replace(to)
    sync_folder(to.parent)
    space.push(name_of(space, to))
    space.drop(name_of(space, to))
