"""Weights after every task: kept when asked for, whatever interrupts, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kenyon.data import find_source
from kenyon.errors import ConfigError
from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.results import Result
from kenyon.experiments.runner import execute, plan
from kenyon.experiments.store import weights_path
from kenyon.experiments.training import build_trainer
from kenyon.experiments.weights import read_weights, rows_of
from kenyon.report.verify import verify
from kenyon.training import Interrupted
from tests.experiments.small import SMALL, all_numbers, stop_after, strengths_of, weights


def kept(out: Path, keep: str = "every", methods: tuple[str, ...] = ("ewc",), calls: int | None = None) -> None:
    overrides = SMALL | {"epochs": 2} | strengths_of(list(methods))
    asked = plan("digits", methods, 2, tasks=3, overrides=overrides, device="cpu", out=out, fwt=False, keep=keep)
    execute(asked, stop=(lambda: False) if calls is None else stop_after(calls))


@pytest.mark.parametrize("method", ["caf-ewc", "icl-ewc", "pnc"])
def test_they_are_the_weights_that_training_had(tmp_path: Path, method: str) -> None:
    kept(tmp_path, methods=(method,))
    folder = tmp_path / "digits" / method
    assert len(list(folder.glob("weights-*"))) == 2 * 3
    result = Result.load(folder / "result.json")
    config = Config.from_dict(result.config)
    trainer = build_trainer(
        [RunSpec(GridPoint(config), s) for s in (0, 1)], find_source("digits").load(None), torch.device("cpu")
    )
    seen: list[torch.Tensor] = []
    trainer.run(lambda t: not t.position.epoch and not t.stage and bool(seen.append(t.theta.clone())))  # type: ignore[func-returns-value]
    M = trainer.members
    for after in (1, 2, 3):
        path = weights_path(folder, 1, None if after == 3 else after)
        rows = rows_of(
            trainer.net, read_weights(path, result.config, 1), trainer.method, config.architecture.learners
        )
        assert torch.equal(rows, seen[after - 1][M : 2 * M])


@pytest.mark.parametrize("calls", [3, 7])
def test_interrupted_and_continued_they_are_the_same(tmp_path: Path, calls: int) -> None:
    kept(tmp_path / "whole")
    with pytest.raises(Interrupted):
        kept(tmp_path / "parts", calls=calls)
    kept(tmp_path / "parts")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    files = {one.path.name: one.state for one in verify(tmp_path / "parts")}
    assert len(files) == 1 + 2 * 3 and {*files.values()} == {"whole"}  # its result names all weights


def test_they_are_no_part_of_the_configuration(tmp_path: Path) -> None:
    kept(tmp_path / "every")
    kept(tmp_path / "last", keep="last")
    every, last = weights(tmp_path / "every"), weights(tmp_path / "last")
    assert set(last) < set(every) and all(every[name] == last[name] for name in last)
    results = [Result.load(tmp_path / out / "digits/ewc/result.json") for out in ("every", "last")]
    assert results[0].config == results[1].config
    assert all_numbers({"ewc": results[0]}) == all_numbers({"ewc": results[1]})
    kept(tmp_path / "last")  # the same configuration: what is finished stays
    assert weights(tmp_path / "last") == last


def test_a_word_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="last or every"):
        kept(tmp_path, keep="some")
