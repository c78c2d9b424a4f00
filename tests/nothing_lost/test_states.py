"""States that cannot be used: the one before serves, or training begins anew."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from kenyon.errors import ResultsError
from kenyon.training import Interrupted
from kenyon.training import checkpoint as keeping
from kenyon.training.checkpoint import before_path, read_head, save_state
from tests.experiments.small import Counter, digits, numbers, stop_after, weights
from tests.nothing_lost.small import GIVEN, the_state


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
    assert len(notices) == 2 and all("start again" in notice for notice in notices)
    assert len(list(tmp_path.rglob("state-*.damaged*"))) == 2


def test_large_states_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: None) -> None:
    monkeypatch.setattr(keeping, "TWO_KEPT", 0)
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(3), **GIVEN)
    assert len(list(tmp_path.rglob("state-*"))) == 1


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("No such file or directory"),
        OSError("Input/output error (os error 5)"),
        RuntimeError("unable to open file in read-only mode: Input/output error (5)"),
    ],
)
@pytest.mark.parametrize("opened", [1, 3, 4])
@pytest.mark.usefixtures("saving")
def test_a_disk_that_fails_to_read_says_nothing_of_the_state(
    opened: int, error: Exception, tmp_path: Path, whole: Any, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it, the program or safetensors in one of its ways to say so: the command ends with the reason,
    and the state stays where it is."""
    with pytest.raises(Interrupted):
        digits(tmp_path, stop=stop_after(3), **GIVEN)
    path, calls, real = the_state(tmp_path), [0], Path.open

    def failing(own: Any) -> Any:
        def call(name: Any, *more: Any, **options: Any) -> Any:
            if str(name) == str(path):
                calls[0] += 1
                if calls[0] == opened:
                    raise own
            return (real if isinstance(own, OSError) and own.errno else safe_open)(name, *more, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing(OSError(errno.EIO, os.strerror(errno.EIO))))
        patch.setattr("kenyon.training.checkpoint.safe_open", failing(error))
        with pytest.raises(ResultsError, match=f"{path.name} cannot be read: Input/output error.*same command"):
            digits(tmp_path, **GIVEN)
    counter = Counter()
    assert numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]) == whole[0]
    assert counter.fleets[-1][2] == 3 and not notices
