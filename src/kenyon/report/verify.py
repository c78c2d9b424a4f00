"""Verification of saved files: `kenyon verify` compares everything that Kenyon has written with its checksums.

No file is changed, except by `accept`. PyTorch is imported only for results without a checksum, of which only the
form can be checked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from kenyon.errors import KenyonError, ResultsError
from kenyon.utils.files import (
    MACHINE_ID,
    as_path,
    cores,
    exists,
    folder_lock,
    is_alive,
    is_file,
    is_folder,
    write_atomically,
)
from kenyon.utils.formats import (
    WEIGHTS,
    ChangedError,
    FileSum,
    check_json,
    crc_of_json,
    has_checksum,
    read_header,
    tensors_intact,
)

State = Literal["whole", "unsealed", "changed", "missing", "unreadable", "left over"]
BAD: tuple[State, ...] = ("changed", "missing", "unreadable")
RESULTS = ("result.json", "scores.json")
TEMPORARY = re.compile(r".*\.(?:([0-9a-f]{8})-)?(\d+)\.tmp")
ASIDE = re.compile(r".*\.damaged(-\d+)?")
SWEEP = ".sweep"  # Kenyon's only hidden folder
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError, MemoryError)


@dataclass(frozen=True)
class Verified:
    """The state of a file that exists or should.

    `state` is "whole", "unsealed" (without a checksum, as in earlier versions), "changed", "missing", "unreadable" or
    "left over"; `why` is the reason, if there is one.
    """

    path: Path
    state: State
    why: str = ""


Check = Callable[[], Verified | None]  # None: the file is not Kenyon's, or has been removed meanwhile


def verify(path: Path | str) -> list[Verified]:
    """Compare all of Kenyon's files at or below a path with their checksums, in the order of their names."""
    path = as_path("path", path)
    if is_folder(path):
        closed: list[OSError] = []
        checks = [check for folder, names in _folders(path, closed) for check in _checks(folder, names)]
        checks += [partial(_found, Verified(Path(e.filename), "unreadable", _reason(e))) for e in closed]
    elif exists(path):
        names = {path.name, *(name for name in RESULTS if WEIGHTS.fullmatch(path.name))}
        if path.name in RESULTS:
            names |= {one.name for one in path.parent.iterdir() if WEIGHTS.fullmatch(one.name)}
        checks = list(_checks(path.parent, sorted(names), alone=path))
    else:
        raise ResultsError(f"There is nothing at {path}. Give a results folder, or a file that Kenyon has written.")
    with ThreadPoolExecutor(min(cores(), 8)) as pool:  # hashing leaves other threads the interpreter
        found = [one for one in pool.map(lambda check: check(), checks) if one is not None]
    if not found:
        raise ResultsError(f"Kenyon has written nothing at {path}. `kenyon run` makes results; --out says where.")
    return sorted(found, key=lambda one: one.path)


def accept(path: Path | str) -> Verified:
    """Give a JSON file a new checksum after an intended edit.

    A result is then marked as unsealed, and names the weights that are in its folder now.
    """
    path = as_path("path", path)
    if not is_file(path):
        what = "a folder" if is_folder(path) else "not there"
        raise ResultsError(f"{path} is {what}. Name the one file whose change is meant.")
    from kenyon.experiments.results import checksummed_text

    with folder_lock(path.parent):  # another process may be adding runs
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            body = msgspec.convert(body, dict[str, Any])
        except (OSError, ValueError, RecursionError) as error:
            raise ResultsError(
                f"{path} cannot be accepted ({_reason(error)}): only JSON that Kenyon has written can be. Restore "
                "another copy of it."
            ) from error
        if path.name in RESULTS:
            body = _accepted_result(body, path)
        elif not ("analysis" in body or "claims" in body):
            raise ResultsError(f"{path} is no file with a checksum: results, scores, analyses and figures have one.")
        write_atomically(path, (checksummed_text(body) + "\n").encode())
    return Verified(path, "whole", "accepted as it is")


def _accepted_result(body: dict[str, Any], path: Path) -> dict[str, Any]:
    body = {name: value for name, value in body.items() if name not in ("checksum", "weights", "unsealed")}
    result = _kind(path).of_body(body, path)  # raises an error for other contents
    seeds = {run.seed for run in result.runs}
    files = sorted(one for one in path.parent.iterdir() if _seed(one.name) in seeds)
    weights = {one.name: asdict(FileSum.of(one)) for one in files}
    return {**body, "summary": result.summary(), "weights": weights, "unsealed": result.unsealed}


# ---------------------------------------------------------------------- what to look at


def _folders(path: Path, closed: list[OSError]) -> Iterator[tuple[Path, list[str]]]:
    """Yield every folder with its files; errors of unreadable folders are added to `closed`."""
    for folder, below, names in os.walk(path, onerror=closed.append):
        below[:] = sorted(name for name in below if not name.startswith(".") or name == SWEEP)
        yield Path(folder), sorted(names)


def _checks(folder: Path, names: list[str], alone: Path | None = None) -> Iterator[Check]:
    """Yield checks of Kenyon's files in a folder; `alone`: only of this one, and of the files that it names."""
    named: dict[str, FileSum] = {}
    seeds: set[int] | None = set()
    for name in names:
        path = folder / name
        if name in RESULTS and path.is_file():
            one, named, seeds = _result(path)
            if alone in (None, path):
                yield partial(_found, one)
    there = {name for name in names if WEIGHTS.fullmatch(name)}
    for name in sorted(there | named.keys()):
        if alone is None or alone.name in (name, *RESULTS):
            yield partial(_weights, folder / name, named, seeds)
    for name in names:
        path = folder / name
        if name not in there and name not in RESULTS and (alone is None or alone == path) and not path.is_dir():
            check = _check_of(path, alone is not None)
            if check is not None:
                yield partial(check, path)


def _check_of(path: Path, alone: bool) -> Callable[[Path], Verified | None] | None:
    """Return the check of a file that is neither a result nor weights; None if it is not Kenyon's."""
    if TEMPORARY.fullmatch(path.name) or ASIDE.fullmatch(path.name):
        return _left_over
    if path.name == "plan.json" and path.parent.name == SWEEP:
        return _plan
    if path.suffix == ".safetensors":
        return _tensors
    ours = path.parent.name == "analysis" or path.parent.parent.name == "figures"
    if path.suffix == ".json" and (ours or alone):
        return _json
    return _tensors if alone else None  # a learner may have any name


# ---------------------------------------------------------------------- one file


def _found(one: Verified) -> Verified:
    return one


def _result(path: Path) -> tuple[Verified, dict[str, FileSum], set[int] | None]:
    """Check a result; also return the weights that it names, and the seeds of its runs, None if unknown."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path, needed="weights" in _keys(body))
        if not has_checksum(body):
            result = _kind(path).of_body(body, path)
            return Verified(path, "unsealed"), {}, {run.seed for run in result.runs}
        named = {name: FileSum(**file) for name, file in body.get("weights", {}).items() if WEIGHTS.fullmatch(name)}
        before = ", ".join(map(str, body.get("unsealed", ())))
        why = f"seeds {before}: unsealed until they were saved again" if before else ""
        return Verified(path, "whole", why), named, {run["seed"] for run in body["runs"]}
    except ChangedError as error:
        return Verified(path, "changed", error.reason), {}, None
    except KenyonError as error:
        return Verified(path, "unreadable", str(error)), {}, None
    except DAMAGE as error:
        return Verified(path, "unreadable", _reason(error)), {}, None


def _kind(path: Path) -> Any:
    if path.name == "scores.json":
        from kenyon.experiments.results import GameResult

        return GameResult
    from kenyon.experiments.results import Result

    return Result


def _weights(path: Path, named: dict[str, FileSum], seeds: set[int] | None) -> Verified | None:
    """Check weights against their result: the files that it names, and the seeds of its runs."""
    written = named.get(path.name)
    try:
        if written is None:
            _, size = read_header(path)
            if size != path.stat().st_size:
                return Verified(path, "unreadable", "it is cut off, or has something behind its end")
            if seeds is None:
                return Verified(path, "unsealed", "its result is unreadable")
            if _seed(path.name) in seeds:
                return Verified(path, "unsealed")
            return Verified(path, "left over", "no result in its folder has its run")
        if not path.exists():
            return Verified(path, "missing", "its result names it")
        found = FileSum.of(path)
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        return Verified(path, "unreadable", _reason(error))
    if found == written:
        return Verified(path, "whole")
    others = [name for name, other in named.items() if other == found]
    is_ = f"it is {others[0]}" if others else "it is not the file that its result names"
    return Verified(path, "changed", is_)


def _tensors(path: Path) -> Verified | None:
    """Check a state or a saved learner; None for tensors of other programs."""
    try:
        head, size = read_header(path)
        if "learner" not in head and not ("identity" in head and "position" in head):
            return Verified(path, "unreadable", "its header is not a state's") if _is_state(path) else None
        if "checksum" not in head:
            old = "learner" not in head and head.get("format") == "1"
            return Verified(path, "unsealed") if old else Verified(path, "changed", "its checksum is gone")
        if size != path.stat().st_size:
            return Verified(path, "changed", "it is cut off, or has something behind its end")
        intact = tensors_intact(path, head["checksum"])
        return Verified(path, "whole") if intact else Verified(path, "changed", "its checksum is wrong")
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        return Verified(path, "unreadable", _reason(error))


def _is_state(path: Path) -> bool:
    return path.name.startswith("state-")


def _json(path: Path) -> Verified | None:
    """Check an analysis or the data of a figure; None for JSON of other programs."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        check_json(body, path)
    except FileNotFoundError:
        return None
    except ChangedError as error:
        return Verified(path, "changed", error.reason)
    except DAMAGE as error:
        return Verified(path, "unreadable", _reason(error))
    if has_checksum(body):
        return Verified(path, "whole")
    return Verified(path, "unsealed") if {"analysis", "claims"} & _keys(body) else None


def _plan(path: Path) -> Verified | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        intact = body["checksum"] == crc_of_json(body["plan"])
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        return Verified(path, "unreadable", _reason(error))
    return Verified(path, "whole") if intact else Verified(path, "changed", "its checksum is wrong")


def _left_over(path: Path) -> Verified | None:
    if ASIDE.fullmatch(path.name):
        return Verified(path, "left over", "set aside, for it could not be used")
    found = TEMPORARY.fullmatch(path.name)
    assert found is not None
    here = found[1] in (None, MACHINE_ID)
    if here and is_alive(int(found[2])):
        return Verified(path, "left over", f"process {found[2]} may be writing it")
    return Verified(path, "left over", "of a process that was ended" if here else "of a process of another machine")


def _seed(name: str) -> int | None:
    found = WEIGHTS.fullmatch(name)
    return None if found is None else int(found[1])


def _keys(body: Any) -> set[str]:
    """The keys of a JSON object; empty for other JSON."""
    return {*body} if isinstance(body, dict) else set()


def _reason(error: BaseException) -> str:
    match error:
        case OSError():
            return error.strerror or str(error)
        case KeyError():
            return f"it has no {error.args[0]}"
        case _:
            return str(error) or type(error).__name__
