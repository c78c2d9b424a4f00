"""Several processes, one results folder: nothing is mixed, and nothing is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kenyon.errors import ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint
from kenyon.experiments.results import Result
from kenyon.experiments.store import PointFolder
from kenyon.training import Interrupted
from tests.experiments.small import Counter, digits, stop_after


def test_runs_of_another_configuration_are_not_mixed_in(tmp_path: Path) -> None:
    """Two that look before either has finished: who finishes later is refused, and keeps its state."""

    class Meanwhile(Counter):
        def fleet_ends(self, seconds: float) -> None:
            digits(tmp_path, seeds=[4, 5], epochs=3)

    with pytest.raises(ResultsError, match="epochs was 3, now 2"):
        digits(tmp_path, seeds=[0, 1], epochs=2, progress=Meanwhile())
    folder = tmp_path / "digits" / "ewc"
    result = Result.load(folder / "result.json")
    assert [run.seed for run in result.runs] == [4, 5] and result.config["training"]["epochs"] == 3
    assert len(list(folder.glob("weights-*"))) == 2 and list(folder.glob("state-*"))


def test_runs_that_finish_at_the_same_time_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = digits(tmp_path / "whole", seeds=6).values()
    point = GridPoint(Config.from_dict(whole.config))
    load = Result.load

    def slowly(path: Path) -> Result:
        found = load(path)
        time.sleep(0.02)  # in which others would write
        return found

    monkeypatch.setattr(Result, "load", staticmethod(slowly))
    (tmp_path / "parts" / "digits" / "ewc").mkdir(parents=True)

    def keep(seed: int) -> None:
        PointFolder(tmp_path / "parts", point).add(whole.restricted([seed]))

    threads = [threading.Thread(target=keep, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = load(tmp_path / "parts" / "digits" / "ewc" / "result.json")
    assert [run.seed for run in found.runs] == list(range(6))


def test_what_was_begun_with_other_settings_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, epochs=3, stop=stop_after(1))
    (state,) = (tmp_path / "digits" / "ewc").glob("state-*")
    with pytest.raises(ResultsError, match="a run that was begun with another configuration") as told:
        digits(tmp_path, epochs=2)
    assert "training.epochs was 3, now 2" in str(told.value) and f"remove {state.name}" in str(told.value)
    state.unlink()
    digits(tmp_path, epochs=2)
