"""Every file-system call fails, tears or kills, or the power fails: the same command again ends as if undisturbed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.soundness import record as record_soundness

import kenyon
from kenyon.errors import ResultsError
from kenyon.report.figures import save_figure
from kenyon.utils.files import cores, write_atomically
from tests.torture.crashes import DATA, NAMES, ZEROS, Call, Disk
from tests.torture.disturbed import targets
from tests.torture.faults import build

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="needs Linux and a C compiler"
)
ROOT = Path(__file__).parents[2]
TARGETS = [target.name for target in targets("")]
SLOW = ("run that goes on", "run, weights after every task", "analyse", "reproduce")  # left to the long run
EACH = 260  # points of a target at most in the long run: evenly spread where there are more


def disturbed(work: Path, most: int, names: Sequence[str], servers: int = 1) -> dict[str, Any]:
    """Try at most so many points of each target, by servers side by side; what they tell, put together."""
    library = build(work)
    env = os.environ | {
        "PYTHONPATH": f"{Path(kenyon.__file__).parents[1]}{os.pathsep}{ROOT}",
        "LD_PRELOAD": str(library),
        "OMP_NUM_THREADS": "1",
        "SOURCE_DATE_EPOCH": "0",  # dates in pictures
        "NO_PROXY": "127.0.0.1",
        "COLUMNS": "200",
    }
    running = []
    for number in range(servers):
        own = work / str(number)
        own.mkdir()
        command = [sys.executable, "-m", "tests.torture.faults", str(own), str(most), *names[number::servers]]
        with (own / "told").open("w") as told, (own / "errors").open("w") as errors:
            running.append((own, subprocess.Popen(command, env=env, stdout=told, stderr=errors)))
    together: dict[str, Any] = {"failures": []}
    for own, server in running:
        assert server.wait() == 0, (own / "errors").read_text()
        for what, found in json.loads((own / "told").read_text().splitlines()[-1]).items():
            if what == "failures":
                together[what] += found
            else:
                counts = together.setdefault(what, {})
                counts.update({name: counts.get(name, 0) + count for name, count in found.items()})
    assert not together["failures"], "\n".join(together["failures"])
    return together


def test_a_few_faults(tmp_path: Path) -> None:
    """Also: nothing has its final name before it is synced, nor would go with a power failure after the end."""
    told = disturbed(tmp_path, 5, [name for name in TARGETS if name not in SLOW])
    assert sum(told["points"].values()) >= 40 and len(told["kinds"]) >= 7


@pytest.mark.torture
def test_faults_at_every_call(tmp_path: Path) -> None:
    began = time.monotonic()
    told = disturbed(tmp_path, EACH, TARGETS, servers=max(1, min(4, cores())))
    points, possible = sum(told["points"].values()), sum(told["possible"].values())
    assert points >= 2000
    record_soundness(
        "faults",
        "a failure at every file-system call in turn (EIO, ENOSPC, half a write, SIGKILL) and what power failures "
        "leave; then the same command: the same files bit by bit, and nothing half-written taken for whole",
        points=points,
        of_possible=possible,
        failures=len(told["failures"]),
        file_system_calls=sum(told["calls"].values()),
        seconds=round(time.monotonic() - began),
        by_target={name: f"{n} of {told['possible'][name]}" for name, n in told["points"].items()},
        by_kind=dict(sorted(told["kinds"].items())),
    )


def did(*calls: tuple[Any, ...]) -> Disk:
    """A folder with the file "a", which holds "old", synced."""
    disk = Disk.of(Path("/d"), {"/d/a": b"old"})
    for op, fd, offset, path, data in calls:
        disk.do(Call(op, fd, offset, 0, path, data))
    return disk


OPEN = ("o", 3, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, "/d/b", b"")
WRITE = ("w", 3, 0, "", b"new!")
SYNC = ("s", 3, 0, "", b"")
RENAME = ("n", -1, 0, "/d/b", b"/d/a")
SYNC_FOLDER = (("r", 4, 0, "/d", b""), ("s", 4, 0, "", b""))


def test_what_power_failures_leave() -> None:
    """By hand: a file is written beside another and takes its place."""
    careless = did(OPEN, WRITE, RENAME)
    assert careless.now() == {"/d/a": b"new!"} and careless.unsynced == ["/d/a"]
    assert careless.after_power_failure(DATA) == {"/d/a": b""}
    assert careless.after_power_failure(ZEROS) == {"/d/a": bytes(4)}
    assert careless.after_power_failure(NAMES) == {"/d/a": b"old"}
    half = did(OPEN, WRITE, SYNC, RENAME)
    assert not half.unsynced and half.not_lasting() == ["/d/a"]
    assert half.after_power_failure(DATA) == {"/d/a": b"new!"}
    assert half.after_power_failure(NAMES) == {"/d/a": b"old"}
    careful = did(OPEN, WRITE, SYNC, RENAME, *SYNC_FOLDER)
    assert not careful.unsynced and not careful.not_lasting()
    assert {str(careful.after_power_failure(how)) for how in (DATA, ZEROS, NAMES)} == {str({"/d/a": b"new!"})}
    appended = did(("o", 3, os.O_APPEND | os.O_WRONLY, "/d/a", b""), ("w", 3, -1, "", b"er"))
    assert appended.now() == {"/d/a": b"older"}
    assert appended.after_power_failure(DATA) == {"/d/a": b"old"}
    assert appended.after_power_failure(ZEROS) == {"/d/a": b"old\0\0"}
    folder = did(("m", -1, 0, "/d/sub", b""), ("o", 3, os.O_CREAT, "/d/sub/c", b""), SYNC, *SYNC_FOLDER)
    assert folder.after_power_failure(NAMES) == {"/d/a": b"old", "/d/sub": None}
    assert folder.not_lasting() == ["/d/sub/c"]


@pytest.mark.parametrize(("code", "told"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_folder_that_cannot_be_synced(
    code: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because its disk fails, or because its file system has no such thing."""
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr("kenyon.utils.files.os.fsync", fsync)
    if told:
        with pytest.raises(ResultsError, match="Input/output error"):
            write_atomically(tmp_path / "it", b"whole")
    else:
        write_atomically(tmp_path / "it", b"whole")
    assert (tmp_path / "it").read_bytes() == b"whole"


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot as plt

    def draw() -> None:
        save_figure(plt.figure(), tmp_path / "it.png")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    draw()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"it.png", "it.svg"}
    monkeypatch.setattr("kenyon.utils.files.os.fsync", full)
    with pytest.raises(ResultsError, match=r"it\.png: No space left on device\. The numbers"):
        draw()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
