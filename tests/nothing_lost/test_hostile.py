"""Files made to harm execute nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from kenyon.datasets.cache import cached
from kenyon.errors import KenyonError
from kenyon.experiments.results import Result
from kenyon.experiments.spec import read_spec
from kenyon.experiments.weights import read_weights
from kenyon.training.checkpoint import StateError, load_state, read_head
from tests.nothing_lost.small import FORMAT_1


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
            read_spec,
        ):
            with pytest.raises(KenyonError, match="hostile"):
                read(path)
        monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: tmp_path / "decoded")
        for _ in range(2):  # built, then spoiled and built anew
            assert cached("made", {}, lambda file: {"bytes": file.write(b"1234")}).facts == {"bytes": 4}
            for cache in tmp_path.glob("decoded/made*"):
                cache.write_bytes(content)
        assert not mark.exists()
    assert notices and all("set aside" in notice for notice in notices)


def test_no_state_error_without_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="nowhere"):
        read_head(tmp_path / "nowhere")
