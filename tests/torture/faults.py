"""Every file-system call of a command fails in turn, and the same command again ends as if nothing had happened.

A server process imports everything once, and forks a child for every attempt. In the child `faults.c` makes the N-th
call below a folder fail, tear or kill; a power failure is made from the record of an undisturbed command (`crashes`).
Afterwards whatever stands under a final name must be a whole version that the undisturbed command passes through,
what reads it may only succeed or refuse with words, and the same command must end with the same files, byte by byte.
For that time stands still in the children: dates and durations are always the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.crashes import DATA, NAMES, OPS, ZEROS, Call, Disk, Tree, read_record, tree_of, write_tree
from tests.torture.disturbed import Target, archive_served, import_everything, targets

SOURCE = Path(__file__).with_suffix(".c")
# As in faults.c: what happens at a call, and to which calls.
KILL, EIO, GONE, FULL, SHORT, TORN = range(1, 7)
KINDS = {
    "killed": (KILL, "ownlmudtsc"),
    "one EIO": (EIO, "orwsnlmudtc"),
    "EIO from here on": (GONE, "ownlmudts"),
    "disk full": (FULL, "owsnlm"),
    "half written, then full": (SHORT, "w"),
    "half written, then killed": (TORN, "w"),
}
POWER = {f"power failure, {how}": how for how in (DATA, ZEROS, NAMES)}
KILLING = (KILL, TORN)
HALVES = ("half written, then full", "half written, then killed")
UNFINISHED = re.compile(r"\.tmp$|\.part$|/\.sweep/|/\.writable$")  # names that nobody takes for whole
FAILED = 70  # exit code of a child that ended with a traceback


@dataclass(frozen=True)
class Point:
    target: str
    call: int
    kind: str

    def __str__(self) -> str:
        return f"{self.target}, call {self.call}, {self.kind}"


@dataclass
class Said:
    """How a child ended."""

    code: int  # negative: the signal
    value: Any = None
    fired: bool = False
    words: str = ""
    traceback: str = ""


@dataclass
class Undisturbed:
    before: Tree
    times: dict[str, int]
    calls: list[Call]
    after: Tree
    value: Any
    versions: dict[str, set[bytes]]  # by path: all that was ever whole under that name
    seen: dict[bytes, str]  # what was wrong with what faults have left, by its digest
    unsafe: list[str]  # what was given its name before it was synced, or might go with a power failure in the end


@dataclass
class Told:
    """What a server did."""

    points: Counter[str] = field(default_factory=Counter)  # by target
    kinds: Counter[str] = field(default_factory=Counter)
    calls: dict[str, int] = field(default_factory=dict)  # of the undisturbed command
    possible: Counter[str] = field(default_factory=Counter)  # points of each target, of which some may be sampled
    failures: list[str] = field(default_factory=list)


def build(folder: Path) -> Path:
    library = folder / "faults.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-lpthread"], check=True)
    return library


class Server:
    """Attempts, in one folder that is made anew for each: paths are parts of some files."""

    def __init__(self, work: Path) -> None:
        self.work, self.here = work, work / "here"
        self.shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.shim.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        self.told = Told()

    def attempt(self, deed: Callable[[Path], Any], *, at: int = -1, kind: int = 0, record: bool = False) -> Said:
        said, words, log = self.work / "said", self.work / "words", self.work / "record"
        said.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._child(deed, said, words, log if record else None, at, kind)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            return Said(code, fired=True)
        return Said(**json.loads(said.read_text()) | {"words": words.read_text(errors="replace")})

    def _child(
        self, deed: Callable[[Path], Any], said: Path, words: Path, log: Path | None, at: int, kind: int
    ) -> None:
        ended: dict[str, Any] = {"code": FAILED}
        try:
            told = os.open(words, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(told, 1)
            os.dup2(told, 2)
            recorded = -1 if log is None else os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            stand_still()
            os.environ["XDG_CACHE_HOME"] = str(self.here / "cache")
            self.shim.faults_arm(os.fsencode(self.here), at, kind, recorded)
            try:
                ended |= {"code": 0, "value": deed(self.here)}
            except SystemExit as leaving:
                ended["code"] = leaving.code or 0
            except BaseException:
                ended["traceback"] = traceback.format_exc()
            self.shim.faults_disarm()
            ended["fired"] = bool(self.shim.faults_fired())
            if self.shim.faults_unseen():
                ended |= {"code": FAILED, "traceback": "it writes in a way that faults.c does not see"}
            sys.stdout.flush()
            sys.stderr.flush()
            said.write_text(json.dumps(ended))
        finally:
            os._exit(0 if said.exists() else FAILED)

    def undisturbed(self, target: Target) -> Undisturbed:
        shutil.rmtree(self.here, ignore_errors=True)
        self.here.mkdir()
        prepared = self.attempt(target.prepare)
        assert prepared.code == 0, prepared
        before = tree_of(self.here)
        times = {name: Path(name).stat().st_mtime_ns for name, content in before.items() if content is not None}
        done = self.attempt(target.deed, record=True)
        assert done.code == 0, (target.name, done)
        record, after = read_record(self.work / "record"), tree_of(self.here)
        disk = Disk.of(self.here, before)
        versions: dict[str, set[bytes]] = {}
        for call in [None, *record]:
            if call is not None:
                disk.do(call)
            for name, content in disk.whole():
                versions.setdefault(name, set()).add(content)
        assert disk.now() == after, f"{target.name}: something writes in a way that faults.c does not see"
        unsafe = [f"{name} has its name before it is synced" for name in disk.unsynced]
        unsafe += [f"{name} may go with a power failure" for name in disk.not_lasting()]
        # A download that is not complete, what a sweep notes for itself, and nothing at all.
        unsafe = [one for one in unsafe if not re.search(r"\.part |/\.sweep[ /].*may go|/\.writable ", one)]
        return Undisturbed(before, times, record, after, done.value, versions, {}, unsafe)

    def points(self, target: Target, usual: Undisturbed) -> list[Point]:
        """All of a target: every numbered call with everything that can happen there."""
        numbered = [call for call in usual.calls if call.op != "q"]
        found = [
            Point(target.name, number, kind)
            for number, call in enumerate(numbered)
            for kind, (_, ops) in KINDS.items()
            if call.op in ops and (len(call.data) > 1 or kind not in HALVES)
        ]
        # Killed before a call is what a power failure finds; where it leaves what it left before, it is no new point.
        disk, seen = Disk.of(self.here, usual.before), {kind: set[bytes]() for kind in POWER}
        number = 0
        for call in [*usual.calls, None]:
            if call is None or call.op != "q":
                for kind, how in POWER.items():
                    digest = _digest(disk.after_power_failure(how))
                    if digest not in seen[kind]:
                        seen[kind].add(digest)
                        found.append(Point(target.name, number, kind))
                number += 1
            if call is not None:
                disk.do(call)
        return found

    def check(self, target: Target, usual: Undisturbed, point: Point) -> str:
        """What is wrong after a fault; empty: nothing."""
        shutil.rmtree(self.here, ignore_errors=True)
        self.here.mkdir()
        if point.kind in POWER:
            write_tree(_failed(self.here, usual, point), usual.times)
        else:
            write_tree(usual.before, usual.times)
            kind = KINDS[point.kind][0]
            said = self.attempt(target.deed, at=point.call, kind=kind)
            if said.traceback:
                return f"a traceback: {said.traceback[-1500:]}"
            if not said.fired:
                return "it never came to this call"
            if kind in KILLING and said.code != -signal.SIGKILL:
                return f"it was not killed but ended with {said.code}"
            if kind not in KILLING and said.code not in (0, 1):
                return f"exit code {said.code}"
            if "Traceback (most" in said.words or "Exception ignored" in said.words:
                return f"a traceback on the way: {said.words[-1500:]}"
            if said.code == 1 and not re.search(r"Error: \S.*\w", said.words):
                return f"exit code 1 without words: {said.words}"
            if said.code == 0 and said.value != usual.value:
                return "another outcome, and no error"
        left = tree_of(self.here)
        digest = _digest(left)
        if digest not in usual.seen:
            usual.seen[digest] = self._afterwards(target, usual, left)
        return usual.seen[digest]

    def _afterwards(self, target: Target, usual: Undisturbed, left: Tree) -> str:
        """What is wrong with what a fault has left; empty: nothing. What two faults have left alike is tried once."""
        half = [
            name
            for name, content in left.items()
            if content is not None and not _whole(name, content, usual.versions)
        ]
        if half:
            return f"{', '.join(half)}: not whole, or never so in the undisturbed command"
        for read in target.reads:
            said = self.attempt(read)
            if said.traceback or said.code not in (0, 1):
                return f"reading it: exit code {said.code}, {said.traceback[-1500:]}"
        said = self.attempt(target.deed)
        if said.code != 0:
            return f"the same command again: exit code {said.code}, {said.words[-600:]}{said.traceback[-1500:]}"
        if said.value != usual.value:
            return f"the same command again has another outcome, {said.value}"
        return _differences(usual.after, tree_of(self.here))

    def run(self, target: Target, most: int) -> None:
        usual = self.undisturbed(target)
        told = self.told
        told.failures += [f"{target.name}: {one}" for one in usual.unsafe]
        told.calls[target.name] = sum(call.op != "q" for call in usual.calls)
        points = self.points(target, usual)
        told.possible[target.name] += len(points)
        for point in evenly(points, most):
            told.points[target.name] += 1
            told.kinds[point.kind] += 1
            if wrong := self.check(target, usual, point):
                call = [call for call in usual.calls if call.op != "q"][point.call : point.call + 1]
                where = f"{OPS[call[0].op]} {call[0].path}" if call else "the end"
                told.failures.append(f"{point} ({where}): {wrong}")
                print(told.failures[-1], file=sys.stderr, flush=True)


def _failed(here: Path, usual: Undisturbed, point: Point) -> Tree:
    """What a power failure before a call leaves."""
    disk, number = Disk.of(here, usual.before), 0
    for call in usual.calls:
        if call.op != "q":
            if number == point.call:
                break
            number += 1
        disk.do(call)
    return disk.after_power_failure(POWER[point.kind])


PROCESS = re.compile(r"(?<=-)\d+(?=(-[0-9a-f]{8})?\.tmp$|\.\d+$)|(?<=-)[0-9a-f]{8}(?=\.tmp$)")  # in a name


def _digest(tree: Tree) -> bytes:
    """Equal for what differs in the number of the process that left it only: that is gone in any case."""
    digest = hashlib.sha256()
    for name, content in sorted((PROCESS.sub("0", name), content) for name, content in tree.items()):
        if content and "/leases/" in name:
            content = re.sub(rb'"process": \d+', b"", content)
        digest.update(f"{name}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(content or b"")
    return digest.digest()


def _whole(name: str, content: bytes, versions: dict[str, set[bytes]]) -> bool:
    """Whether a file is whole. The state before a state is one of those that it was. Pictures may be of a part of the
    runs, where others could not be trained: they have to be complete.
    """
    if UNFINISHED.search(name) or any(content in versions.get(n, ()) for n in (name, name.replace("-before.", "."))):
        return True
    ends = {".png": b"IEND\xaeB`\x82", ".svg": b"</svg>\n", ".pdf": b"%%EOF\n"}.get(Path(name).suffix)
    return ends is not None and content.endswith(ends)


def _differences(usual: Tree, found: Tree) -> str:
    """Empty: none. What was set aside as damaged is kept for the user to look at."""
    found = {name: _settled(name, content) for name, content in found.items() if ".damaged" not in name}
    usual = {name: _settled(name, content) for name, content in usual.items()}
    missing, more = sorted(usual.keys() - found.keys()), sorted(found.keys() - usual.keys())
    other = sorted(name for name in usual.keys() & found.keys() if usual[name] != found[name])
    parts = [("missing", missing), ("left behind", more), ("different", other)]
    return "; ".join(f"{word} after the same command again: {', '.join(names)}" for word, names in parts if names)


def _settled(name: str, content: bytes | None) -> bytes | None:
    """Without what is told of how the work went: with how many runs others trained in their last session, and how
    long a sweep's fleets took.
    """
    if content is None or "/marks/" in name:
        return content and b""
    return re.sub(rb',\s*"together": \d+', b"", content) if name.endswith("result.json") else content


def evenly(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many, spread over all."""
    if len(points) <= most:
        return list(points)
    return [points[int((n + 0.5) * len(points) / most)] for n in range(most)]


def stand_still() -> None:
    """Dates, in this process. Durations were stopped before anything was imported."""
    import datetime

    class Still(datetime.datetime):
        @classmethod
        def now(cls, zone: Any = None) -> Any:
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=zone)

    datetime.datetime = Still  # type: ignore[misc]


def serve(work: Path, most: int, names: Sequence[str]) -> Told:
    """Try at most so many points of each of these targets."""
    with archive_served() as url:
        import_everything()
        server = Server(work)
        for target in targets(url):
            if target.name in names:
                began = time.monotonic()
                server.run(target, most)
                told = server.told
                print(
                    f"{target.name}: {told.points[target.name]} of {told.possible[target.name]} points, "
                    f"{told.calls[target.name]} calls, {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        return server.told


if __name__ == "__main__":
    print(json.dumps(vars(serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))))
