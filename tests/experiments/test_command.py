"""The command that an error tells to type makes the configuration it is about."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kenyon.experiments.command import command_of
from kenyon.experiments.config import configure, parse_settings


@pytest.mark.parametrize(
    ("method", "tasks", "overrides"),
    [
        ("ewc", None, {}),
        ("caf-ewc", 3, {"epochs": 2, "lambda_sp": 7.5, "learners": 3, "gate": True, "diversity": "low"}),
        ("ewc", 2, {"fisher": "exact", "rate": 1e-5, "width": 4}),
        ("er", None, {"memory": 2}),
    ],
)
def test_it_makes_the_same_configuration(method: str, tasks: int | None, overrides: dict[str, Any]) -> None:
    config = configure("digits", method, tasks=tasks, overrides=overrides)
    words = shlex.split(command_of(config, [0, 1], "there", "--keep-every-task"))
    assert words[:5] == ["kenyon", "run", "digits", "--method", method] and words[-1] == "--keep-every-task"
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    asked = int(words[words.index("--tasks") + 1]) if "--tasks" in words else None
    assert configure("digits", method, tasks=asked, overrides=parse_settings(given, [method])) == config


@pytest.mark.parametrize(("seeds", "text"), [([0, 1, 2], "3"), ([0, 3], "0,3"), ([7], "7,")])
def test_seeds(seeds: list[int], text: str) -> None:
    words = command_of(configure("digits", "ewc"), seeds, "there").split()
    assert words[words.index("--seeds") + 1] == text
