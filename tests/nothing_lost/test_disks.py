"""Disks that are full or fail, folders that go away: what was computed is kept."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kenyon.errors import ResultsError
from kenyon.experiments import training
from kenyon.experiments.results import Result
from kenyon.experiments.runner import execute, plan
from kenyon.training import Trainer
from kenyon.utils.files import MACHINE_ID
from tests.experiments.small import Counter, all_numbers, digits, numbers, weights
from tests.image_replicas import write_tiny_imagenet
from tests.nothing_lost.small import GIVEN


class Disk:
    """Raises at the n-th thing that anybody does to the disk below a folder, and at every one after it."""

    def __init__(self, patch: pytest.MonkeyPatch, below: Path, code: int) -> None:
        self.below, self.code, self.done, self.fails_from = str(below), code, 0, 10**9
        opened, synced, replaced = Path.open, os.fsync, Path.replace

        def write(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
            if "w" in mode and str(path).startswith(self.below):
                self.touch(path)
                return Full(opened(path, mode, *more, **options), lambda: self.touch(path))
            return opened(path, mode, *more, **options)

        def replace(path: Path, target: Path) -> Path:
            if str(path).startswith(self.below):
                self.touch(path)
            return replaced(path, target)

        def fsync(handle: int) -> None:
            self.touch(handle)
            synced(handle)

        patch.setattr(Path, "open", write)
        patch.setattr(Path, "replace", replace)
        patch.setattr(os, "fsync", fsync)

    def touch(self, what: object) -> None:
        self.done += 1
        if self.done >= self.fails_from:
            raise OSError(self.code, os.strerror(self.code))


class Full(io.RawIOBase):
    """A file that takes half of what it is given before it fails."""

    def __init__(self, file: Any, touch: Callable[[], None]) -> None:
        self.file, self.touch = file, touch

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.file.write(view[: len(view) // 2])
        self.touch()
        self.file.write(view[len(view) // 2 :])
        return len(view)

    def flush(self) -> None:
        if not self.file.closed:
            self.file.flush()

    def fileno(self) -> int:
        return int(self.file.fileno())

    def close(self) -> None:
        self.file.close()
        super().close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_any_moment(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, notices: list[str], saving: None
) -> None:
    """One call in which it works, to count; then calls in which it fails from the n-th deed on, each in a folder of
    its own. Where results could not be written, the same command goes on from the last state."""
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path, code)
        digits(tmp_path / "counted", **GIVEN)
        deeds = disk.done
    assert deeds > 50
    begun, moments = [], {1, 2, 5, deeds // 3, 2 * deeds // 3, deeds - 3, deeds}
    for moment in sorted(moments) if code == errno.ENOSPC else [deeds // 2]:
        out = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            disk = Disk(patch, out, code)
            disk.fails_from = moment
            try:
                digits(out, **GIVEN)
            except ResultsError as told:
                assert os.strerror(code) in str(told) and "--out" in str(told) and str(out) in str(told)
            else:
                assert moment > deeds - 3  # the last deed is to sync a folder whose file is in place
        assert not list(out.rglob("*.tmp"))
        counter = Counter()
        assert (numbers(digits(out, progress=counter, **GIVEN)["ewc"]), weights(out)) == whole
        begun += [done for _, _, done in counter.fleets]
    assert any(done > 0 for done in begun)
    assert notices and all("Training goes on" in notice for notice in notices)


def test_the_state_before_gives_its_room_to_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, saving: None
) -> None:
    """A disk with room for two states and nothing else."""
    real = training.write_atomically

    def write(path: Path, data: bytes) -> None:
        if list(tmp_path.rglob("state-*-before*")):
            raise ResultsError(f"Cannot write {path}: no space left.")
        real(path, data)

    monkeypatch.setattr(training, "write_atomically", write)
    assert (numbers(digits(tmp_path, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert not list(tmp_path.rglob("state-*"))


def test_weights_between_tasks_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: None
) -> None:
    """The state that is rescued then stands after that task, which is not learned again."""

    def trained() -> None:
        asked: dict[str, Any] = {"overrides": GIVEN | {"width": 2, "lambda_sp": 10.0}, "device": "cpu", "tasks": 2}
        execute(plan("digits", ["ewc"], 1, fwt=False, keep="every", out=tmp_path, **asked))

    real = training.write_atomically

    def write(path: Path, data: bytes) -> None:
        if "-after-" in path.name:
            raise ResultsError(f"Cannot write {path}: no space left.")
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_atomically", write)
        with pytest.raises(ResultsError, match="-after-1"):
            trained()
    trained()
    found, usual = weights(tmp_path), {"digits/ewc/weights-0.safetensors", "digits/ewc/weights-0-after-1.safetensors"}
    assert set(found) == usual
    shutil.rmtree(tmp_path / "digits")
    trained()
    assert weights(tmp_path) == found


def test_a_folder_whose_files_cannot_be_removed_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def kept(path: Path, missing_ok: bool = False) -> None:
        if path.name == ".writable":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kept)
        with pytest.raises(ResultsError, match=r"Cannot remove .*\.writable: Input/output error.*--out"):
            digits(tmp_path, **GIVEN)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".writable"]
    digits(tmp_path, **GIVEN)
    assert not list(tmp_path.rglob(".writable"))


def test_files_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, saving: None
) -> None:
    """States whose runs are finished stay, and are removed by the next command, with what was left half written."""
    unlink = Path.unlink

    def kept(path: Path, missing_ok: bool = False) -> None:
        if path.name == ".writable":
            unlink(path, missing_ok)
        elif path.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kept)
        assert numbers(digits(tmp_path, **GIVEN)["ewc"]) == whole[0]
    (state,) = (path for path in tmp_path.rglob("state-*") if "-before" not in path.name)
    digits(tmp_path, **GIVEN)
    assert not list(tmp_path.rglob("state-*"))
    half = state.with_name(f"{state.name}.{MACHINE_ID}-999999999.tmp")
    half.write_bytes(b"half")
    (state.parent / "result.json").unlink()
    monkeypatch.setattr(training, "SAVE_EVERY", 1e9)  # no other state is saved
    digits(tmp_path, **GIVEN)
    assert not half.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kenyon.utils.files import write_atomically

    path = tmp_path / "result.json"
    write_atomically(path, b"before")
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda p, mode="r", *more: opened(Path("/dev/full"), mode, *more))
    with pytest.raises(ResultsError, match="No space left"):
        write_atomically(path, b"after" * 10_000)
    monkeypatch.undo()
    assert path.read_bytes() == b"before" and [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_two_processes_do_not_write_into_one_file(tmp_path: Path) -> None:
    """And what a killed one left is swept away."""
    from kenyon.utils.files import write_atomically

    path = tmp_path / "result.json"
    alive, dead = tmp_path / f"result.json.{os.getppid()}.tmp", tmp_path / "result.json.999999999.tmp"
    for left in (alive, dead):
        left.write_bytes(b"half")
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole" and alive.exists() and not dead.exists()


@pytest.mark.skipif(os.name != "posix", reason="files in use cannot be removed there")
def test_data_that_are_removed_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images, and their decoded pixels, which are mapped rather than read: both are in hand until the end."""
    monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: tmp_path / "data/decoded")

    class Remover(Counter):
        def epoch_done(self, trainer: Trainer) -> None:
            shutil.rmtree(tmp_path / "data", ignore_errors=True)

    def trained(out: str, progress: Counter) -> dict[str, Result]:
        given = {"epochs": 1, "width": 1, "lambda_sp": 1.0, "batch": 64}
        asked = {"tasks": 1, "overrides": given, "device": "cpu", "data": tmp_path / "data", "out": tmp_path / out}
        return execute(plan("tiny-imagenet", ["finetune", "ewc"], 1, fwt=False, **asked), progress=progress)

    write_tiny_imagenet(tmp_path / "data")
    expected = trained("whole", Counter())
    assert all_numbers(trained("removed", Remover())) == all_numbers(expected)
    assert not (tmp_path / "data").exists()
