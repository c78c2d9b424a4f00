"""Files that are there whole or not at all, and states that are named when they are damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from kenyon.errors import ResultsError
from kenyon.training.checkpoint import ADDED, Position, load_state, save_state
from kenyon.utils.files import write_atomically


def test_a_full_disk_is_told_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match="No space left") as told:
        write_atomically(path, b"after")
    assert str(path) in str(told.value) and "--out" in str(told.value)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state", {"theta": torch.randn(2, 5), "steps": torch.arange(2)}
    where = Position(phase=1, epoch=3, seconds=1.5, diverged=[None, [0, 2]], records=[{"accuracy": [[1.0], [2.0]]}])
    save_state(path, tensors, where, "mine")
    empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    assert load_state(path, empty, "mine") == where
    assert all(torch.equal(empty[name], tensors[name]) for name in tensors)


def test_some_rows_of_a_state_are_the_state_of_those_runs(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state", {"theta": torch.randn(4, 5), "steps": torch.arange(4)}
    records = [{"accuracy": [[float(run)] for run in range(4)]}]
    where = Position(phase=1, epoch=3, seconds=10.0, diverged=[None, [0, 2], None, None], records=records)
    save_state(path, tensors, where, "mine")
    some = {"theta": torch.zeros(2, 5), "steps": torch.zeros(2, dtype=torch.long)}
    at = load_state(path, some, "mine", [3, 1])
    assert at == Position(1, 3, 5.0, [None, [0, 2]], [{"accuracy": [[3.0], [1.0]]}])
    assert all(torch.equal(some[name], tensors[name][[3, 1]]) for name in tensors)
    with pytest.raises(ResultsError, match=str(path)):
        load_state(path, some, "mine", [3, 4])


def test_a_full_device_is_not_taken_for_a_damaged_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = tmp_path / "state", {"theta": torch.zeros(1, 2)}
    save_state(path, tensors, Position(diverged=[None]), "mine")

    def full(*what: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.Tensor, "copy_", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_state(path, tensors, "mine")


@pytest.mark.parametrize("cut", [0, 4, 40, 200, -1])
def test_a_truncated_state_is_named(tmp_path: Path, cut: int) -> None:
    path, tensors = tmp_path / "state", {"theta": torch.randn(2, 50)}
    save_state(path, tensors, Position(diverged=[None]), "mine")
    path.write_bytes(path.read_bytes()[:cut])
    why = "it is empty" if cut == 0 else "it is damaged"
    with pytest.raises(ResultsError, match=f"{path} cannot be used: {why}"):
        load_state(path, tensors, "mine")


def test_a_foreign_state_is_refused(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state", {"theta": torch.randn(2, 5)}
    save_state(path, tensors, Position(diverged=[None]), "mine")
    for others, identity in ((tensors, "yours"), ({"phi": torch.zeros(2, 5)}, "mine")):
        with pytest.raises(ResultsError, match=str(path)):
            load_state(path, others, identity)
    with pytest.raises(ResultsError, match=str(path)):
        load_state(path, {"theta": torch.zeros(3, 7)}, "mine")


@pytest.mark.parametrize("wrong", [torch.zeros(2, 1), torch.zeros(1, 5), torch.zeros(5), torch.zeros(2, 5).long()])
def test_a_tensor_of_another_form_is_refused_even_if_it_could_be_spread(tmp_path: Path, wrong: torch.Tensor) -> None:
    path = tmp_path / "state"
    save_state(path, {"theta": wrong}, Position(diverged=[None]), "mine")
    with pytest.raises(ResultsError, match="theta in it has another shape than here"):
        load_state(path, {"theta": torch.zeros(2, 5)}, "mine")


@pytest.mark.parametrize("name", sorted(ADDED))
def test_what_earlier_states_do_not_have_begins_at_zero(tmp_path: Path, name: str) -> None:
    path, theta = tmp_path / "state", torch.randn(2, 5)
    save_state(path, {"theta": theta}, Position(diverged=[None, None]), "mine")
    here = {"theta": torch.zeros(2, 5), name: torch.full((2, 1), 7.0)}
    load_state(path, here, "mine")
    assert torch.equal(here["theta"], theta) and not here[name].any()
