"""Disks that are full, folders that go away, clocks that jump, files that are damaged: what was computed is kept."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from kenyon.cli.progress import RunProgress
from kenyon.data.cache import cached
from kenyon.data.reports import reporting_to
from kenyon.errors import KenyonError, ResultsError
from kenyon.experiments import keeping, training
from kenyon.experiments.config_file import read_config
from kenyon.experiments.missing import Incomplete
from kenyon.experiments.results import Result
from kenyon.experiments.runner import execute, plan
from kenyon.experiments.states import before_path
from kenyon.experiments.weights import read_weights
from kenyon.train import Interrupted, Trainer
from kenyon.train.state import StateError, load_state, read_head, save_state
from tests.experiments.small import Counter, all_numbers, digits, numbers, stop_after, weights
from tests.experiments.test_fleets import full_device
from tests.image_replicas import write_tiny_imagenet

GIVEN: dict[str, Any] = {"epochs": 3, "batch": 64}


class Notices:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def notice(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def notices() -> Iterator[list[str]]:
    listener = Notices()
    with reporting_to(listener):
        yield listener.texts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("whole")
    return numbers(digits(out, **GIVEN)["ewc"]), weights(out)


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state after every epoch."""
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(training, "REST", 0.0)


def the_state(out: Path) -> Path:
    (path,) = (path for path in out.rglob("state-*.safetensors") if "-before" not in path.name)
    return path


# ---------------------------------------------------------------------- states that cannot be used


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    """One bit of a weight."""
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    """A whole state with the same name and runs, of something else."""
    head = read_head(path)
    with safe_open(path, framework="pt") as file:
        tensors = {"other": file.get_tensor("theta")}
    at = keeping.Position.from_json(head["position"])
    save_state(path, tensors, at, head["identity"])


@pytest.mark.parametrize("spoil", [cut, flip, empty, foreign])
@pytest.mark.usefixtures("saving")
def test_the_state_before_serves(
    spoil: Callable[[Path], None], tmp_path: Path, whole: Any, notices: list[str]
) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(4), **GIVEN)
    path = the_state(tmp_path)
    before, here = (read_head(p)["position"] for p in (before_path(path), path))
    assert json.loads(before)["epoch"] < json.loads(here)["epoch"] or json.loads(before)["phase"] < 1
    path.unlink() if spoil is empty else None  # the two may be one file under two names
    spoil(path)
    counter = Counter()
    result = digits(tmp_path, progress=counter, **GIVEN)["ewc"]
    assert (numbers(result), weights(tmp_path)) == whole
    assert counter.fleets[-1][2] == 3  # of four epochs that had been saved
    (notice,) = notices
    assert str(path) in notice and f"{before_path(path).name} is used instead" in notice
    assert [p.name for p in tmp_path.rglob("state-*")] == [f"{path.name}.damaged"]


@pytest.mark.parametrize("spoil", [cut, flip, empty])
def test_without_one_before_it_begins_anew(
    spoil: Callable[[Path], None], tmp_path: Path, whole: Any, notices: list[str]
) -> None:
    for time_ in (1, 2):  # set aside twice: neither is lost
        with pytest.raises(Interrupted):
            digits(tmp_path, stop=stop_after(1), **GIVEN)
        spoil(the_state(tmp_path))
        if time_ == 1:
            with pytest.raises(Interrupted):
                digits(tmp_path, stop=stop_after(0), **GIVEN)
            the_state(tmp_path).unlink()
    assert (numbers(digits(tmp_path, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert len(notices) == 2 and all("begin anew" in notice for notice in notices)
    assert len(list(tmp_path.rglob("state-*.damaged*"))) == 2


def test_large_states_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: None) -> None:
    monkeypatch.setattr(keeping, "TWO_KEPT", 0)
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(3), **GIVEN)
    assert len(list(tmp_path.rglob("state-*"))) == 1


# ---------------------------------------------------------------------- other versions


FORMAT_1 = Path(__file__).parent / "format-1"


def test_results_and_states_of_an_older_version_are_read(tmp_path: Path) -> None:
    """Files of the version whose states had no checksum."""
    folder = tmp_path / "digits/ewc"
    folder.mkdir(parents=True)
    shutil.copy(FORMAT_1 / "state-31d02360.safetensors", folder)
    counter = Counter()
    given: dict[str, Any] = {"epochs": 2, "width": 1, "batch": 64}
    result = digits(tmp_path, seeds=1, progress=counter, **given)["ewc"]
    assert counter.fleets[0][2] > 0
    old = Result.load(FORMAT_1 / "result.json")
    assert numbers(result) == numbers(old)
    read_weights(FORMAT_1 / "weights-0.safetensors", old.config, 0)


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(1), **GIVEN)
    path = the_state(tmp_path)
    newer = path.read_bytes().replace(b'"format":"2"', b'"format":"7"')
    path.write_bytes(newer)
    with pytest.raises(ResultsError, match=r"state of format 7, made by a newer version.*Update Kenyon"):
        digits(tmp_path, **GIVEN)
    assert path.read_bytes() == newer
    path.unlink()
    digits(tmp_path, **GIVEN)
    result = tmp_path / "digits/ewc/result.json"
    result.write_text(result.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(ResultsError, match=r"result of format 9, made by a newer version.*Update Kenyon"):
        digits(tmp_path, **GIVEN)


# ---------------------------------------------------------------------- disks and folders


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kenyon.files import write_atomically

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
    from kenyon.files import write_atomically

    path = tmp_path / "result.json"
    alive, dead = tmp_path / f"result.json.{os.getppid()}.tmp", tmp_path / "result.json.999999999.tmp"
    for left in (alive, dead):
        left.write_bytes(b"half")
    write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole" and alive.exists() and not dead.exists()


@pytest.mark.skipif(os.name != "posix", reason="files in use cannot be removed there")
def test_data_that_are_removed_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images, and their decoded pixels, which are mapped rather than read: both are in hand until the end."""
    monkeypatch.setattr("kenyon.data.cache.decoded_folder", lambda: tmp_path / "data/decoded")

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


# ---------------------------------------------------------------------- a sudden end


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_a_sudden_end_keeps_the_last_complete_epoch(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any
) -> None:
    """Inside the fifth epoch, its weights changed already, long before a state would be saved."""
    monkeypatch.setattr(keeping, "COPY_EVERY", 0.0)
    monkeypatch.setattr(keeping, "COPY_REST", 0.0)
    steps, step = [0], Trainer._step

    def ends(trainer: Trainer) -> None:
        steps[0] += (trainer.position.phase, trainer.position.epoch) == (1, 1)
        step(trainer)
        if steps[0] == 1:
            raise error("no reason")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", ends)
        with pytest.raises(error):
            digits(tmp_path, **GIVEN)
    counter = Counter()
    assert (numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert counter.fleets[0][2] == 4


def test_an_end_while_a_state_is_copied_or_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any) -> None:
    """Between epochs the tensors themselves are the state."""
    monkeypatch.setattr(keeping, "COPY_EVERY", 0.0)
    monkeypatch.setattr(keeping, "COPY_REST", 0.0)
    calls = [0]

    def ends(position: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return position

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "deepcopy", ends)
        with pytest.raises(KeyboardInterrupt):
            digits(tmp_path, **GIVEN)
    counter = Counter()
    assert (numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert counter.fleets[0][2] == 3


# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("jump", [-1e6, 1e6, 0.0])
def test_a_clock_that_jumps(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, notices: list[str]
) -> None:
    """Every clock jumps after every third question, and stands still where it does not jump at all."""
    asked = [0]

    def jumping() -> float:
        asked[0] += 1
        return 1e9 + jump * (asked[0] // 3)

    from rich.console import Console

    lines = io.StringIO()
    monkeypatch.setattr("kenyon.cli.progress.LINE_EVERY", -1.0)
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, jumping)
    with RunProgress(Console(file=lines, width=200)) as progress:
        result = digits(tmp_path, progress=progress, **GIVEN)["ewc"]
    monkeypatch.undo()
    assert (numbers(result), weights(tmp_path)) == whole
    assert result.seconds >= 0 and "left" in lines.getvalue() and "-" not in lines.getvalue()
    assert asked[0] > 20 and not notices


# ---------------------------------------------------------------------- what is missing


def test_a_run_without_room_does_not_keep_others_from_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two methods, the first too large: its numbers are missing, the second's are there."""
    full_device(monkeypatch, 0, (0, 1))
    small = training.Trainer

    class OnlyIndependent(small):  # type: ignore[misc, valid-type]
        def _note_failure(self, now: Any) -> None:
            if self.members > 1:
                super()._note_failure(now)

    monkeypatch.setattr(training, "Trainer", OnlyIndependent)
    with pytest.raises(Incomplete) as told:
        digits(tmp_path, ["icl-ewc", "finetune"], learners=2, **GIVEN)
    assert list(told.value.results) == ["finetune"] and len(told.value.results["finetune"].runs) == 2
    assert "icl-ewc, seed 0, 1: kenyon run digits --method icl-ewc --seeds 2 --tasks 2" in str(told.value)
    monkeypatch.undo()
    results = digits(tmp_path, ["icl-ewc", "finetune"], learners=2, **GIVEN)
    assert all_numbers(results)["finetune"] == numbers(told.value.results["finetune"])


# ---------------------------------------------------------------------- hostile files


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_reading_a_file_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: list[str]) -> None:
    """A pickle that leaves a mark, in every place that is read: as it is, and as PyTorch packs it."""
    mark = tmp_path / "executed"
    torch.save(Bomb(mark), tmp_path / "packed")
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # the mark is left if anybody does execute it
    mark.unlink()
    config = Result.load(FORMAT_1 / "result.json").config
    for content in (pickle.dumps(Bomb(mark)), (tmp_path / "packed").read_bytes()):
        path = tmp_path / "hostile"
        path.write_bytes(content)
        for read in (
            lambda path: load_state(path, {"theta": torch.zeros(1)}, "mine"),
            lambda path: read_weights(path, config, 0),
            Result.load,
            read_config,
        ):
            with pytest.raises(KenyonError, match="hostile"):
                read(path)
        monkeypatch.setattr("kenyon.data.cache.decoded_folder", lambda: tmp_path / "decoded")
        for _ in range(2):  # built, then spoiled and built anew
            assert cached("made", {}, lambda file: {"bytes": file.write(b"1234")}).facts == {"bytes": 4}
            for cache in tmp_path.glob("decoded/made*"):
                cache.write_bytes(content)
        assert not mark.exists()
    assert notices and all("set aside" in notice for notice in notices)


def test_no_state_error_without_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere"):
        read_head(tmp_path / "nowhere")
