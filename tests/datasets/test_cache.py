from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from kenyon.datasets.cache import BLOCK, FORGOTTEN, Cached, cached
from kenyon.errors import DataError
from kenyon.utils.files import MACHINE_ID
from kenyon.utils.progress import reporting_to
from tests.listening import Listener

PIXELS = np.random.default_rng(0).integers(0, 256, 3 * BLOCK // 2, dtype=np.uint8)
IDENTITY = {"what": "made", "making": [1, 28], "files": "abc"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = tmp_path / "new" / "decoded"
    monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: target)
    return target


class Builder:
    def __init__(self) -> None:
        self.built = 0

    def __call__(self, file: IO[bytes]) -> dict[str, Any]:
        self.built += 1
        file.write(PIXELS.tobytes())
        return {"names": ["a", "b"], "table": {"start": [0, 1]}}


def holds(found: Cached) -> bool:
    return np.array_equal(found.pixels, PIXELS) and found.facts == {"names": ["a", "b"], "table": {"start": [0, 1]}}


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def test_pixels_are_built_once(folder: Path) -> None:
    build = Builder()
    assert holds(cached("made", IDENTITY, build)) and holds(cached("made", IDENTITY, build))
    assert build.built == 1 and files(folder) == [".json", ".pixels"]


def test_pixels_that_cannot_be_read_back_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their disk fails when they are whole: an error in words, and the next time they are there."""
    mapped, real = [0], np.memmap

    def fails(*asked: Any) -> Any:
        mapped[0] += 1
        if mapped[0] == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*asked)

    monkeypatch.setattr("kenyon.datasets.cache.np.memmap", fails)
    with pytest.raises(DataError, match="Input/output error"):
        cached("made", IDENTITY, Builder())
    build = Builder()
    assert holds(cached("made", IDENTITY, build)) and build.built == 0


def test_what_is_written_to_the_pixels_stays_in_this_process(folder: Path) -> None:
    cached("made", IDENTITY, Builder()).pixels[:] = 0
    assert holds(cached("made", IDENTITY, Builder()))


def test_other_originals_or_another_making_have_pixels_of_their_own(folder: Path) -> None:
    build = Builder()
    for change in ({}, {"files": "abd"}, {"making": [2, 28]}):
        assert holds(cached("made", IDENTITY | change, build))
    assert build.built == 3
    assert holds(cached("made", IDENTITY, build)) and build.built == 3


def flip_a_byte(header: Path, pixels: Path) -> None:
    content = bytearray(pixels.read_bytes())
    content[BLOCK + 12345] ^= 1
    pixels.write_bytes(content)


def cut_pixels(header: Path, pixels: Path) -> None:
    pixels.write_bytes(pixels.read_bytes()[:-1])


def lose_pixels(header: Path, pixels: Path) -> None:
    pixels.unlink()


def cut_header(header: Path, pixels: Path) -> None:
    header.write_text(header.read_text()[:100])


def edit(key: str, value: Any) -> Callable[[Path, Path], None]:
    def change(header: Path, pixels: Path) -> None:
        header.write_text(json.dumps(json.loads(header.read_text()) | {key: value}))

    return change


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip_a_byte, "have changed"),
        (cut_pixels, "missing or incomplete"),
        (lose_pixels, "missing or incomplete"),
        (cut_header, "header is not readable"),
        (edit("format", 99), "format 99, where this version of Kenyon writes 1"),
        (edit("identity", {"what": "other"}), "other files"),
        (edit("facts", None), "header is not readable"),
        (edit("file", 7), "header is not readable"),
        (edit("file", "../../outside"), "missing or incomplete"),
    ],
)
def test_damaged_and_foreign_ones_are_named_set_aside_and_built_anew(
    folder: Path, spoil: Callable[[Path, Path], None], reason: str
) -> None:
    build, listener = Builder(), Listener()
    cached("made", IDENTITY, build)
    header, pixels = next(folder.glob("*.json")), next(folder.glob("*.pixels"))
    spoil(header, pixels)
    with reporting_to(listener):
        assert holds(cached("made", IDENTITY, build)) and build.built == 2
        assert holds(cached("made", IDENTITY, build)) and build.built == 2
    [notice] = listener.notices
    assert reason in notice and str(header) in notice and "built again" in notice
    assert header.with_name(f"{header.name}.damaged").exists()


def test_where_nobody_listens_a_notice_is_a_warning(folder: Path) -> None:
    cached("made", IDENTITY, Builder())
    next(folder.glob("*.pixels")).unlink()
    with pytest.warns(UserWarning, match="set aside"):
        cached("made", IDENTITY, Builder())


def test_an_interrupted_building_leaves_nothing(folder: Path) -> None:
    def interrupted(file: IO[bytes]) -> dict[str, Any]:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("made", IDENTITY, interrupted)
    assert list(folder.iterdir()) == []
    assert holds(cached("made", IDENTITY, Builder()))


def test_what_a_killed_process_left_is_swept_away_in_time(folder: Path) -> None:
    folder.mkdir(parents=True)
    old, fresh = folder / "made-1.tmp", folder / "made-2.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, time.time() - FORGOTTEN - 60))
    assert holds(cached("made", IDENTITY, Builder()))
    assert not old.exists() and fresh.exists()


@pytest.mark.skipif(os.name != "posix", reason="asks which processes are alive")
def test_what_a_killed_process_of_this_machine_left_is_swept_away_at_once(folder: Path) -> None:
    folder.mkdir(parents=True)
    dead, alive = (folder / f"made.{MACHINE_ID}-{pid}-ab12.tmp" for pid in (999_999_999, os.getppid()))
    for path in (dead, alive):
        path.write_bytes(b"half")
    assert holds(cached("made", IDENTITY, Builder()))
    assert not dead.exists() and alive.exists()


def test_what_was_made_of_a_folder_when_it_was_another_is_removed(folder: Path) -> None:
    here, there = ({"path": place, "side": 4} for place in ("here", "there"))
    for identity in (here, there, {**here, "side": 5}):
        cached("made", {**identity, "files": "first"}, Builder())
    cached("made", {"side": 4, "files": "first"}, Builder())  # of no folder: copies may lie in several
    cached("made", {"side": 4, "files": "second"}, Builder())
    cached("made", {**here, "files": "second"}, Builder())
    kept = [json.loads(path.read_text())["identity"] for path in folder.glob("*.json")]
    assert len(kept) == 5 and {**here, "files": "first"} not in kept and {**here, "files": "second"} in kept


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_others_may_read_what_is_kept(folder: Path) -> None:
    before = os.umask(0o022)
    try:
        cached("made", IDENTITY, Builder())
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def _in_another_process(folder: Path, barrier: Any, answers: Any) -> None:
    from kenyon.datasets import cache as module

    module.decoded_folder = lambda: folder  # type: ignore[attr-defined]

    def build(file: IO[bytes]) -> dict[str, Any]:
        barrier.wait(120)  # all of them build at once
        return Builder()(file)

    answers.put(holds(cached("made", IDENTITY, build)))


def test_two_processes_may_build_at_once(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    barrier, answers = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_in_another_process, args=(folder, barrier, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=240) for _ in workers] == [True, True]
    for worker in workers:
        worker.join()
    assert files(folder) == [".json", ".pixels"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: tmp_path / "file" / "decoded")
    with pytest.raises(DataError, match=r"cannot be kept in .*file.*XDG_CACHE_HOME"):
        cached("made", IDENTITY, Builder())


def test_a_full_disk_is_named(folder: Path) -> None:
    def full(file: IO[bytes]) -> dict[str, Any]:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"No space left on device\. Make room"):
        cached("made", IDENTITY, full)
    assert list(folder.iterdir()) == []


def test_no_pixels_at_all_are_no_trouble(folder: Path) -> None:
    for _ in range(2):
        assert len(cached("made", IDENTITY, lambda file: {}).pixels) == 0
