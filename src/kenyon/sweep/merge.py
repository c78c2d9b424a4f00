"""Merging: from a fleet's own folder into the results of the store.

A fleet writes into a folder of its own, so that no two workers write one file. Its finished runs are then added to
the results, under a lease for the results of the method. After a kill at any moment, it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint
from kenyon.experiments.results import RESULTS, ResultBase
from kenyon.experiments.store import PointFolder, method_folder, remove_finished
from kenyon.sweep.leases import Leases
from kenyon.sweep.storage import Storage
from kenyon.utils.files import make_folder, sync_folder

FILES = tuple(kind.FILE for kind in RESULTS)


def name_of(storage: Storage, path: Path) -> str:
    """Return the name of a file or folder in the store."""
    return path.relative_to(storage.local).as_posix()


def pull_results(storage: Storage, points: Sequence[GridPoint], start: str | None = None) -> None:
    """Pull the results of some points of one method, or files with another beginning."""
    first = points[0]
    storage.pull(name_of(storage, method_folder(storage.local, first)), start or first.config.kept.FILE)


def results_lease(point: GridPoint) -> str:
    """Return the name of the lease to hold while adding to a method's results."""
    return f"results-{point.config.benchmark}-{point.config.method}"


def merge_fleet(storage: Storage, folder: str) -> None:
    """Move everything from a fleet's folder to its place: weights, results, and states if it has not finished."""
    own = storage.local / folder
    results = {path.parent: _load(kind, path) for kind in RESULTS for path in sorted(own.rglob(kind.FILE))}
    places = {here: PointFolder(storage.local, point) for here, (point, _) in results.items()}
    if results:
        pull_results(storage, [point for point, _ in results.values()])
    for path in sorted(path for path in own.rglob("*") if path.is_file() and path.name not in FILES):
        finished = places[path.parent].result() if path.parent in places else None
        if finished is None or not any(_belongs(path, run.seed) for run in finished.runs):
            _move(storage, path, storage.local / path.relative_to(own))
    if results:
        points = [point for point, _ in results.values()]  # of one method
        with Leases(storage).holding(results_lease(points[0])):
            pull_results(storage, points)
            for here, (_, result) in results.items():
                for origin in result.fleets:
                    places[here].add(result.restricted(origin.seeds))
                storage.push(name_of(storage, places[here].result_path))
    storage.remove(folder)


def remove_begun(storage: Storage, points: Sequence[GridPoint]) -> None:
    """Remove states next to the results whose runs are all finished: of `kenyon run`, or of an earlier plan."""
    for path in remove_finished(storage.local, points):
        storage.remove(name_of(storage, path))


def _load(kind: type[ResultBase], path: Path) -> tuple[GridPoint, ResultBase]:
    result = kind.load(path)
    return GridPoint(Config.from_dict(result.config), result.point), result


def _belongs(path: Path, seed: int) -> bool:
    return path.name.startswith((f"weights-{seed}.", f"weights-{seed}-"))


def _move(storage: Storage, path: Path, to: Path) -> None:
    if path.name.endswith(".tmp"):
        return
    make_folder(to.parent)
    path.replace(to)
    sync_folder(to.parent)
    storage.push(name_of(storage, to))
    storage.drop(name_of(storage, to))
