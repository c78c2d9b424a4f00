"""A results folder: OUT/BENCHMARK/METHOD holds the result, weights and unfinished states of one configuration.

The points of a grid have folders of their own below it, METHOD/lambda_sp=1000,lambda_af=1e-08, each with its full
configuration. Those of a search are in OUT/search/BENCHMARK/METHOD/PROTOCOL, apart from what is reported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from kenyon.errors import ResultsError
from kenyon.experiments.grid import AnyPoint, PointOf
from kenyon.experiments.results import Kept, value_text
from kenyon.experiments.spec import Configured
from kenyon.training.regime import Training
from kenyon.utils.files import folder_lock, make_folder, write_atomically
from kenyon.utils.formats import FileSum

OWN = "own."  # begins the names of digests of a user's own code, among settings on one level


def method_folder(out: Path, point: AnyPoint) -> Path:
    return out / point.config.folder


def weights_path(folder: Path, seed: int, after: int | None = None) -> Path:
    """Of a run's final weights, or of those after so many of its tasks."""
    moment = "" if after is None else f"-after-{after}"
    return folder / f"weights-{seed}{moment}.safetensors"


def check_writable(folder: Path) -> None:
    probe = folder / ".writable"
    write_atomically(probe, b"")
    try:
        probe.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(f"Cannot remove {probe}: {reason}. Choose another folder with --out.") from error


K = TypeVar("K", bound=Kept[Any, Any])
Ko = TypeVar("Ko", bound=Kept[Any, Any], covariant=True)


class Keeps(Configured, Protocol[Ko]):
    """A configuration whose runs are kept as such results."""

    @property
    def kept(self) -> type[Ko]: ...


class PointFolder(Generic[K]):
    """Where the finished runs of one point are."""

    def __init__(self, out: Path, point: PointOf[Keeps[K]]) -> None:
        self.point = point
        self.path = method_folder(out, point) / point.name

    @property
    def result_path(self) -> Path:
        return self.path / self.point.config.kept.FILE

    def weights_path(self, seed: int, after: int | None = None) -> Path:
        return weights_path(self.path, seed, after)

    def result(self) -> K | None:
        return self.point.config.kept.load(self.result_path) if self.result_path.exists() else None

    def check(self) -> None:
        """Before anything is trained: what is there was made with the same configuration."""
        result = self.result()
        if result is not None:
            self.check_same(result.config)

    def check_same(self, other: dict[str, Any], *, begun: Path | None = None) -> None:
        """`begun`: the state of a run that is not finished, where that is what has the `other` configuration."""
        check_equal(self.path, *comparable(self.point.config.as_dict(), other), begun=begun)

    def save(self, result: K) -> None:
        result.save(self.result_path)

    def add(self, new: K, weights: Callable[[int], bytes] | None = None, earlier: Sequence[int] = ()) -> None:
        """Keep new runs beside those that are there. What is there stays: finished is finished.

        Another process may have kept runs here since this one looked: of another configuration they are refused.
        `weights` makes the file of a seed's final weights, which is written before the result that names it;
        those after so many `earlier` tasks are there already.
        """
        try:
            make_folder(self.path)  # which is what is locked
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

    def change(self, how: Callable[[K], K]) -> K | None:
        """Replace the result by what `how` makes of it, whoever else adds runs to it. None: there is no result."""
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
        """Weights after tasks before the last, as they are on disk: an earlier session may have written them."""
        paths = [self.weights_path(seed, tasks) for tasks in earlier]
        return {path.name: FileSum.of(path) for path in paths if path.is_file()}


def check_equal(folder: Path, mine: dict[str, Any], theirs: dict[str, Any], *, begun: Path | None = None) -> None:
    """That a folder's results, or what was `begun` there, have the same configuration, all settings on one level."""
    if mine == theirs:
        return
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    changed = [name.removeprefix(OWN) for name in names if name.startswith(OWN)]
    if len(changed) == len(names):
        what = f"the state {begun.name} of an unfinished run, which" if begun else "results, which"
        raise ResultsError(
            f"{folder} holds {what} another {' and '.join(changed)} of that name made: its code has changed since. "
            "Choose another folder with --out, give it another name, or make it what it was."
        )
    told = "; ".join(f"{n} was {theirs.get(n, 'not set')}, now {mine.get(n, 'not set')}" for n in names)
    if begun is not None:
        raise ResultsError(
            f"{folder} holds a run that was begun with another configuration ({told}) and is not finished. Choose "
            f"another folder with --out, finish it with the same configuration, or remove {begun.name} there."
        )
    raise ResultsError(
        f"{folder} holds results made with another configuration ({told}). "
        "Choose another folder with --out, or ask for the same configuration."
    )


def result_files(path: Path) -> list[Path]:
    """The result files at or below a path, of which there is at least one."""
    if not path.exists():
        raise ResultsError(f"There is nothing at {path}. `kenyon run` makes results; --out says where.")
    files = [path] if path.is_file() else files_below(path, "result.json")
    if not files and files_below(path, "scores.json"):
        raise ResultsError(f"{path} has only scores of games, which `kenyon show` and `kenyon report` know.")
    if not files:
        raise ResultsError(f"There are no results (result.json) below {path}. {unfinished(path)}".rstrip())
    return files


def unfinished(path: Path, most: int = 6) -> str:
    """Says which folders below have runs that were interrupted; empty where none have."""
    states = files_below(path, "state-*.safetensors") if path.is_dir() else []
    here = path.as_posix()
    folders = list(dict.fromkeys(s.parent.relative_to(path).as_posix() if s.parent != path else here for s in states))
    rest = f" and {len(folders) - most} more" if len(folders) > most else ""
    told = f"Unfinished runs are in {', '.join(folders[:most])}{rest}: the command that began them goes on with them."
    return told if folders else ""


def files_below(folder: Path, name: str) -> list[Path]:
    """Hidden folders are left out: what a sweep has not finished yet is in one."""
    found = sorted(folder.rglob(name))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def settled(config: dict[str, Any]) -> dict[str, Any]:
    """All settings of a configuration on one level. Those that came later than it had their present defaults."""
    return flatten({"training": Training().as_dict()}) | flatten(config)


def comparable(one: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both `settled`. Whose code one of them does not know, since it is older, may be anybody's."""
    known = {name for name in (*one.get("own", {}), *other.get("own", {})) if "own" in one and "own" in other}
    first, second = (
        {n: v for n, v in settled(c).items() if not n.startswith(OWN) or n.removeprefix(OWN) in known}
        for c in (one, other)
    )
    return first, second


def config_digest(config: dict[str, Any]) -> str:
    """Of a configuration by value: 1000 and 1000.0 are one."""
    flat = {name: value_text(value) for name, value in settled(config).items()}
    return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:16]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: training.epochs."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
