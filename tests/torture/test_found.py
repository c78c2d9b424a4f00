"""Inputs by which mutation found a traceback, each mended since. (A nameless file in a zip is in tests/data.)"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as to_bytes

from kenyon.bench.result import BenchResult
from kenyon.errors import ConfigError, KenyonError, ResultsError
from kenyon.experiments.config import Config
from kenyon.experiments.results import GameResult, Result
from kenyon.experiments.runner import check_seeds
from kenyon.experiments.spec import read_spec
from kenyon.experiments.store import read_state
from kenyon.experiments.weights import read_weights
from kenyon.training.checkpoint import StateError

GOOD = Path(__file__).parents[1] / "experiments" / "format-1" / "result.json"
SCORES = Path("benchmarks/cpu-games/rl-mini/ewc/scores.json")


def ragged(body: Any) -> None:
    body["runs"][0]["accuracy"][0].pop()


def no_seconds(body: Any) -> None:
    body["fleets"][0]["seconds"] = None


def text_for_a_number(body: Any) -> None:
    body["runs"][0]["accuracy"][0][0] = "high"


def no_tasks(body: Any) -> None:
    body["config"]["tasks"] = 0


def twice(body: Any) -> None:
    body["runs"].append(body["runs"][0])


def infinite_format(body: Any) -> None:
    body["format"] = float("inf")


def beyond_all(body: Any) -> None:
    body["runs"][0]["accuracy"][0][0] = 1e9


@pytest.mark.parametrize(
    "spoil", [ragged, no_seconds, text_for_a_number, no_tasks, twice, infinite_format, beyond_all]
)
def test_results_out_of_form(spoil: Callable[[Any], None], tmp_path: Path) -> None:
    body = json.loads(GOOD.read_text())
    spoil(body)
    path = tmp_path / "result.json"
    path.write_text(json.dumps(body))
    with pytest.raises(ResultsError, match=r"result\.json cannot be read as a Kenyon result"):
        Result.load(path)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda body: body.pop("format"), "it has no format"),
        (lambda body: body["config"].pop("games"), r"required field `games` - at `\$.config`"),
        (lambda body: body["runs"][0]["scores"][0].pop(), "is not rows of 5 numbers"),
        (lambda body: body["runs"][1]["scores"].pop(), "are not a row for each moment"),
        (lambda body: body["moments"].clear(), "a game has no moment"),
        (lambda body: body["config"].pop("training"), r"required field `training` - at `\$.config`"),
    ],
)
def test_scores_out_of_form(spoil: Callable[[Any], None], told: str, tmp_path: Path) -> None:
    body = json.loads(SCORES.read_text())
    spoil(body)
    (tmp_path / "scores.json").write_text(json.dumps(body))
    with pytest.raises(ResultsError, match=told):
        GameResult.load(tmp_path / "scores.json")


def test_names_in_a_result_stay_as_they_are() -> None:
    result = Result.load(GOOD)
    odd = replace(result.runs[0], tasks=["[ cat ]", "a  ,  b", *result.runs[0].tasks[2:]])
    text = replace(result, runs=[odd, *result.runs[1:]]).to_json()
    assert json.loads(text)["runs"][0]["tasks"][:2] == ["[ cat ]", "a  ,  b"]


def test_json_that_is_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    for opening, read in (("", Result.load), ("a = ", read_spec), ("", BenchResult.load)):
        path.write_text(opening + "[" * 100_000)
        with pytest.raises(KenyonError, match="deep"):
            read(path)


@pytest.mark.parametrize("head", [{}, [], 3, {"seed": 0}, {"seed": 0, "config": 1}, {"seed": 0, "config": {"a": []}}])
def test_weights_that_do_not_say_whose_they_are(head: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights-0.safetensors"
    path.write_bytes(to_bytes({"a": torch.zeros(1)}, metadata={"run": json.dumps(head)}))
    with pytest.raises(ResultsError, match="weights of another run"):
        read_weights(path, Result.load(GOOD).config, 0)


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"phase": "x", "diverged": [None]},
        {"phase": 1, "diverged": []},
        {"phase": 1, "diverged": [None], "records": [{"accuracy": []}]},
        {"phase": -1, "diverged": [None]},
        {"phase": 0, "diverged": [[1]]},
        {"phase": 0, "diverged": [None], "seconds": float("nan")},
        {"phase": 0, "diverged": [None, None]},
        {"phase": 0, "diverged": 5},
    ],
)
def test_states_whose_position_makes_no_sense(position: Any, tmp_path: Path) -> None:
    path = tmp_path / "state-1.safetensors"
    identity = json.dumps({"config": Result.load(GOOD).config, "seeds": [0]})
    head = {"format": "1", "identity": identity, "position": json.dumps(position)}
    path.write_bytes(to_bytes({"theta": torch.zeros(1, 2)}, metadata=head))
    with pytest.raises(StateError, match="state-1"):
        read_state(path)


def test_more_seeds_than_there_are() -> None:
    """Listing them all took the memory of the machine."""
    with pytest.raises(ConfigError, match="kenyon search"):
        check_seeds(99_999_999_999)


def test_a_configuration_of_another_form() -> None:
    config = Result.load(GOOD).config
    for part in ({"training": {"epochs": "many"}}, {"training": {"nonsense": 1}}, {"architecture": 3}, {"more": 1}):
        with pytest.raises(ConfigError):
            Config.from_dict(config | part)
