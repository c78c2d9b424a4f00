"""Arguments of the wrong kind from Python: one sentence that names the argument and what was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kenyon
from kenyon.errors import ConfigError, KenyonError
from kenyon.experiments.policy import policy_of
from kenyon.experiments.runner import run


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"benchmark": 3}, "benchmark goes by its name in quotes, not by 3"),
        ({"benchmark": ["digits"]}, "benchmark goes by its name"),
        ({"methods": 5}, "methods must be a name in quotes, or a list of names, not 5"),
        ({"methods": ["ewc", None]}, "methods must be a name in quotes"),
        ({"methods": b"ewc"}, "methods must be a name in quotes"),
        ({"methods": kenyon.Method()}, "methods must be a name in quotes"),
        ({"seeds": "abc"}, "not 'abc'"),
        ({"seeds": 1.5}, "not 1.5"),
        ({"seeds": b"1"}, "not b'1'"),
        ({"seeds": []}, "at least one seed"),
        ({"out": 5}, "out must be a path, not 5"),
        ({"out": None}, "out must be a path, not None"),
        ({"out": "a\0b"}, "out must be a path"),
        ({"data": []}, "data must be a path"),
        ({"config": 5}, "config must be a path"),
        ({"device": None}, "no device None"),
        ({"tasks": "2"}, "tasks must be a whole number, not '2'"),
        ({"tasks": 1.0}, "tasks must be a whole number, not 1.0"),
        ({"log": []}, "log goes by its name"),
        ({"progress": print}, "progress must be an object with the methods fleet_starts"),
        ({"learners": "five"}, "learners must be a whole number, not 'five'"),
        ({"lambda_sp": 10**400}, "lambda_sp must be a finite number"),
        ({"lambda_sp": 10**5000}, "not a very large int"),
    ],
)
def test_run_says_what_it_was_given(
    given: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual: dict[str, Any] = {"benchmark": "digits", "methods": "caf-ewc", "seeds": 1, "epochs": 1, "device": "cpu"}
    with pytest.raises(ConfigError) as told:
        kenyon.run(**usual | given)
    assert named in str(told.value)
    assert not list(tmp_path.iterdir())


def test_others_do_too() -> None:
    x, y = np.eye(8), np.arange(8) % 2
    learner = kenyon.ContinualLearner(epochs=1, device="cpu").fit(x, y)
    for call, named in (
        (lambda: kenyon.search(3), "benchmark"),
        (lambda: kenyon.search("digits", None), "method"),
        (lambda: kenyon.search("digits", "ewc", protocol=3), "search protocol"),
        (lambda: kenyon.report(None), "results must be a path"),
        (lambda: run("rl-mini", 5), "methods"),
        (lambda: run("rl-mini", "ewc", games=5), "games"),
        (lambda: policy_of(5, 0), "folder must be a path"),
        (lambda: kenyon.ContinualLearner.load(5), "path must be a path"),
        (lambda: learner.save(5), "path must be a path"),
        (lambda: learner.save("."), "it is a folder"),
    ):
        with pytest.raises(KenyonError, match=named):
            call()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"epochs": "many"}, "epochs must be a whole number, not 'many'"),
        ({"epochs": 1.5}, "epochs must be a whole number, not 1.5"),
        ({"rate": None}, "rate must be a number, not None"),
        ({"validation": "a"}, "validation must be a number"),
        ({"carry": "no"}, "carry must be True or False"),
    ],
)
def test_a_regime_has_numbers(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        kenyon.Training(**given)


def test_names_may_have_spaces_between_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "tasks": 1, "fwt": False, "device": "cpu", "out": tmp_path}
    assert set(kenyon.run("digits", " ewc , finetune", 1, **options)) == {"ewc", "finetune"}
