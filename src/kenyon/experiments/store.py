"""A results folder: finished runs, their weights, and saved states of runs that are not finished.

OUT/BENCHMARK/METHOD holds the result, weights and states of one configuration. The points of a grid have folders of
their own below it, METHOD/lambda_sp=1000,lambda_af=1e-08, each with its full configuration. Those of a search are in
OUT/search/BENCHMARK/METHOD/PROTOCOL.

A saved state belongs to a job, and lies in the folder of its grid point, or of the method if its runs are of several
points. Runs share nothing, so a state can be resumed for some of its runs: every run resumes from the most advanced
state that holds it. A state is removed when all of its runs are finished, and one that cannot be used is set aside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kenyon.errors import ResultsError
from kenyon.experiments.results import GameResult, Result, point_name, value_text
from kenyon.training.checkpoint import Position, StateError, before_path, check_state, read_head
from kenyon.training.regime import Training
from kenyon.utils.files import folder_lock, make_folder, set_aside, write_atomically
from kenyon.utils.formats import FileSum
from kenyon.utils.progress import reporter

if TYPE_CHECKING:
    from kenyon.experiments.grid import GridPoint, RunSpec

OWN = "own."  # prefix of digests of the user's own code, in flat settings


def method_folder(out: Path, point: GridPoint) -> Path:
    return out / point.config.folder


def weights_path(folder: Path, seed: int, after: int | None = None) -> Path:
    """Return the file of a run's final weights, or of those `after` this number of its tasks."""
    moment = "" if after is None else f"-after-{after}"
    return folder / f"weights-{seed}{moment}.safetensors"


def check_writable(folder: Path) -> None:
    """Raise ResultsError unless files can be written to and removed from a folder."""
    probe = folder / ".writable"
    write_atomically(probe, b"")
    try:
        probe.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(f"Cannot remove {probe}: {reason}. Choose another folder with --out.") from error


# ------------------------------------------------------------------------------------------------- finished runs


class PointFolder:
    """The folder of one grid point."""

    def __init__(self, out: Path, point: GridPoint) -> None:
        self.point = point
        self.path = method_folder(out, point) / point.name

    @property
    def result_path(self) -> Path:
        return self.path / self.point.config.kept.FILE

    def weights_path(self, seed: int, after: int | None = None) -> Path:
        return weights_path(self.path, seed, after)

    def result(self) -> Any:
        """Return the result of this point (`Result`, of games `GameResult`), or None if there is none."""
        return self.point.config.kept.load(self.result_path) if self.result_path.exists() else None

    def finished(self) -> set[int]:
        """Return the seeds of the finished runs."""
        result = self.result()
        return set() if result is None else {run.seed for run in result.runs}

    def check(self) -> None:
        """Raise ResultsError if the folder holds results of another configuration."""
        result = self.result()
        if result is not None:
            self.check_same(result.config)

    def check_same(self, other: dict[str, Any], *, begun: Path | None = None) -> None:
        """Raise ResultsError unless `other` is this point's configuration. `begun`: the saved state that has it."""
        check_equal(self.path, *comparable(self.point.config.as_dict(), other), begun=begun)

    def save(self, result: Result | GameResult) -> None:
        result.save(self.result_path)

    def add(self, new: Any, weights: Callable[[int], bytes] | None = None, earlier: Sequence[int] = ()) -> None:
        """Add new runs to the result. Runs that are there stay, and another configuration is refused: another process
        may have added runs since this one looked.

        `weights` makes the file of a seed's final weights, which is written before the result that names it; those
        after the `earlier` numbers of tasks are on disk already.
        """
        try:
            make_folder(self.path)  # the lock is on the folder
        except OSError as error:
            raise ResultsError(
                f"Cannot make {self.path}: {error.strerror or error}. Make room or choose another folder with --out."
            ) from error
        with folder_lock(self.path):
            before = self.result()
            there: set[int] = set()
            if before is not None:
                self.check_same(before.config)
                there = {run.seed for run in before.runs}
            if weights is not None:
                files: dict[str, FileSum] = {}
                for run in new.complete_runs:
                    if run.seed not in there:
                        files |= self._write(run.seed, weights(run.seed)) | self._earlier(run.seed, earlier)
                new = replace(new, weights=files)
            after = new if before is None else before.with_more(new)
            if after is not before:
                self.save(after)

    def change(self, how: Callable[[Any], Any]) -> Any:
        """Replace the result by `how(result)`, under the folder's lock. None if there is no result."""
        with folder_lock(self.path):
            before = self.result()
            if before is None:
                return None
            after = how(before)
            if after is not before:
                self.save(after)
            return after

    def _write(self, seed: int, data: bytes) -> dict[str, FileSum]:
        path = self.weights_path(seed)
        write_atomically(path, data)
        return {path.name: FileSum.of_bytes(data)}

    def _earlier(self, seed: int, earlier: Sequence[int]) -> dict[str, FileSum]:
        """Return the files of weights after earlier tasks, which an earlier session may have written."""
        paths = [self.weights_path(seed, tasks) for tasks in earlier]
        return {path.name: FileSum.of(path) for path in paths if path.is_file()}


def check_equal(folder: Path, wanted: dict[str, Any], there: dict[str, Any], *, begun: Path | None = None) -> None:
    """Raise ResultsError unless two flat configurations, of a call and of a folder's results or state, are equal."""
    if wanted == there:
        return
    names = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
    changed = [name.removeprefix(OWN) for name in names if name.startswith(OWN)]
    if len(changed) == len(names):
        what = f"the state {begun.name} of an unfinished run, which" if begun else "results, which"
        raise ResultsError(
            f"{folder} holds {what} another {' and '.join(changed)} of that name made: its code has changed since. "
            "Choose another folder with --out, give it another name, or make it what it was."
        )
    differences = "; ".join(f"{n} was {there.get(n, 'not set')}, now {wanted.get(n, 'not set')}" for n in names)
    if begun is not None:
        raise ResultsError(
            f"{folder} holds a run that was begun with another configuration ({differences}) and is not finished. "
            f"Choose another folder with --out, finish it with the same configuration, or remove {begun.name} there."
        )
    raise ResultsError(
        f"{folder} holds results made with another configuration ({differences}). "
        "Choose another folder with --out, or ask for the same configuration."
    )


def result_files(path: Path) -> list[Path]:
    """Return the results of images at or below a path. Raises ResultsError where there are none."""
    if not path.exists():
        raise ResultsError(f"There is nothing at {path}. `kenyon run` makes results; --out says where.")
    files = [path] if path.is_file() else files_below(path, Result.FILE)
    if not files and files_below(path, GameResult.FILE):
        raise ResultsError(f"{path} has only scores of games, which `kenyon show` and `kenyon report` know.")
    if not files:
        raise ResultsError(f"There are no results (result.json) below {path}. {unfinished(path)}".rstrip())
    return files


def unfinished(path: Path, most: int = 6) -> str:
    """Return a sentence about folders below that have interrupted runs; empty where there are none."""
    states = files_below(path, "state-*.safetensors") if path.is_dir() else []
    here = path.as_posix()
    folders = list(dict.fromkeys(s.parent.relative_to(path).as_posix() if s.parent != path else here for s in states))
    rest = f" and {len(folders) - most} more" if len(folders) > most else ""
    where = ", ".join(folders[:most])
    return f"Unfinished runs are in {where}{rest}: the command that began them resumes them." if folders else ""


def files_below(folder: Path, name: str) -> list[Path]:
    """Return the files of this name, without hidden folders: a sweep has its unfinished work in one."""
    found = sorted(folder.rglob(name))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def flat_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return all settings of a saved configuration on one level. Later settings have their defaults."""
    return flatten({"training": Training().as_dict()}) | flatten(config)


def comparable(one: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both as flat settings, without digests of code that only one of them has: it may be older."""
    known = {name for name in (*one.get("own", {}), *other.get("own", {})) if "own" in one and "own" in other}
    first, second = (
        {n: v for n, v in flat_settings(c).items() if not n.startswith(OWN) or n.removeprefix(OWN) in known}
        for c in (one, other)
    )
    return first, second


def config_digest(config: dict[str, Any]) -> str:
    """Return a digest by value: 1000 and 1000.0 are equal."""
    flat = {name: value_text(value) for name, value in flat_settings(config).items()}
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:16]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings on one level: training.epochs."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


# ------------------------------------------------------------------------------------------------- saved states


@dataclass(frozen=True)
class SavedRuns:
    """The runs of one grid point in a saved state."""

    config: dict[str, Any]
    seeds: list[int]
    point: dict[str, Any]

    @property
    def keys(self) -> list[Hashable]:
        return [_key(self.config, self.point, seed) for seed in self.seeds]


@dataclass(frozen=True)
class SavedState:
    """A saved state of a job."""

    path: Path
    identity: str
    saved: tuple[SavedRuns, ...]  # in the order of the runs
    reached: tuple[int, int]  # (phase, epoch)

    @property
    def keys(self) -> list[Hashable]:
        """One for each run."""
        return [key for some in self.saved for key in some.keys]

    def rows(self, runs: Iterable[RunSpec]) -> list[int]:
        """Return the positions of some runs among those of the state."""
        places = {key: row for row, key in enumerate(self.keys)}
        return [places[_run_key(run)] for run in runs]


@dataclass(frozen=True)
class Job:
    """Runs that train together, and the saved state that they resume from."""

    runs: tuple[RunSpec, ...]  # of one structure
    begun: SavedState | None = None  # which may hold more runs


def _key(config: dict[str, Any], point: dict[str, Any], seed: int) -> Hashable:
    """Return a key of a run, by value: 1000 and 1000.0 are equal."""
    flat = {name: tuple(value) if type(value) is list else value for name, value in flat_settings(config).items()}
    return point_name(point), frozenset(flat.items()), seed


def _run_key(run: RunSpec) -> Hashable:
    return _key(run.config.as_dict(), run.point.varied, run.seed)


def identity_of(runs: Sequence[RunSpec]) -> str:
    """Return configurations and seeds of runs in their order, as a saved state names them."""
    parts: list[dict[str, Any]] = []
    for _, same in groupby(runs, key=lambda run: run.point.name):
        some = list(same)
        point = some[0].point
        parts.append({"config": point.config.as_dict(), "seeds": [run.seed for run in some]})
        if point.varied:
            parts[-1]["point"] = point.varied
    return json.dumps(parts[0] if len(parts) == 1 else {"points": parts})


def state_path(out: Path, runs: Sequence[RunSpec]) -> Path:
    names = {run.point.name for run in runs}
    first = runs[0].point
    folder = PointFolder(out, first).path if len(names) == 1 else method_folder(out, first)
    digest = hashlib.sha256(identity_of(runs).encode()).hexdigest()[:8]
    return folder / f"state-{digest}.safetensors"


def read_state(path: Path) -> SavedState | None:
    """Read the head of a saved state. None for a state that is not of an experiment."""
    head = read_head(path)
    try:
        identity, position = json.loads(head["identity"]), Position.from_json(head["position"])
        parts = identity.get("points", [identity])
        if not all({"config", "seeds"} <= set(part) for part in parts):
            check_state(path, head)  # or it is of an experiment, and has changed
            return None
        state = SavedState(
            path,
            head["identity"],
            tuple(SavedRuns(part["config"], part["seeds"], part.get("point", {})) for part in parts),
            (position.phase, position.epoch),
        )
        if len(set(state.keys)) != len(position.diverged):
            raise ValueError("it names other runs than it holds")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(path, f"it is damaged or no state at all ({error})") from error
    return state


def usable(path: Path) -> SavedState | None:
    """Return the state at a path, or set it aside with a notice if it cannot be used."""
    try:
        return read_state(path)
    except StateError as problem:
        put_aside(problem)
        return None


def put_aside(problem: StateError) -> None:
    """Rename a state that cannot be used; it is never removed. Its runs resume from other states that hold them."""
    path = problem.path
    if not path.exists():
        return  # another process was faster
    before = before_path(path)
    instead = f"{before.name} is used instead" if before.exists() else "runs that no other state holds start again"
    aside = set_aside(path)
    reporter().notice(
        f"{path} cannot be used: {problem.reason}. It was set aside as {aside.name}; {instead}. Finished results are "
        "not affected."
    )


def find_states(out: Path, points: Sequence[GridPoint]) -> list[SavedState]:
    """Return all states that may hold runs of these points of one method."""
    folders = dict.fromkeys([method_folder(out, points[0]), *(PointFolder(out, point).path for point in points)])
    paths = (path for folder in folders for path in sorted(folder.glob("state-*.safetensors")))
    return [state for path in paths if (state := usable(path)) is not None]


def check_states(out: Path, points: Sequence[GridPoint]) -> None:
    """Raise ResultsError if a saved state was begun with another configuration."""
    remove_finished(out, points)  # of a process that was killed between saving a result and removing the state
    asked = {point.name: PointFolder(out, point) for point in points}
    for state in find_states(out, points):
        for some in state.saved:
            if (name := point_name(some.point)) in asked:
                asked[name].check_same(some.config, begun=state.path)


def remove_finished(out: Path, points: Sequence[GridPoint]) -> list[Path]:
    """Remove the states whose runs are all finished, and return their paths."""
    removed = []
    for state in find_states(out, points):
        folders = [(PointFolder(out, replace(points[0], varied=some.point)), some.seeds) for some in state.saved]
        if all(folder.finished().issuperset(seeds) for folder, seeds in folders):
            try:
                check_state(state.path, read_head(state.path))  # a damaged head may name other runs
            except StateError as problem:
                put_aside(problem)
                continue
            with contextlib.suppress(OSError):  # found again the next time
                state.path.unlink(missing_ok=True)
            removed.append(state.path)
    return removed


def resumed(states: Sequence[SavedState], runs: Sequence[RunSpec]) -> tuple[list[Job], list[RunSpec]]:
    """Return the jobs that resume from a state, and the runs that no state holds.

    The most advanced state comes first; of equal ones that with the fewest runs, which is a part trained alone.
    """
    left = {_run_key(run): run for run in runs}
    jobs = []
    for state in sorted(states, key=lambda state: (state.reached, -len(state.keys)), reverse=True):
        held = [left.pop(key) for key in state.keys if key in left]
        if held:
            jobs.append(Job(tuple(held), state))
    return jobs, list(left.values())
