"""The command that an error tells to type makes the configuration it is about."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from kenyon.benchmarks.registry import load_benchmark_file
from kenyon.experiments.config import configure, parse_settings
from kenyon.experiments.scheduler import command_of
from kenyon.methods import load_method_file


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


@pytest.mark.parametrize("folder", ["my results", "it's", 'the "best"', "a[1]*", "new\nline", "a;b & $HOME"])
def test_a_shell_reads_a_folder_as_one_word(folder: str) -> None:
    words = shlex.split(command_of(configure("digits", "ewc"), [0], folder))
    assert words[words.index("--out") + 1 :] == [folder]


def test_own_files_are_named_by_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name alone would mean nothing to a new command."""
    method, stream = tmp_path / "my methods" / "mine.py", tmp_path / "my_stream.py"
    method.parent.mkdir()
    method.write_text(
        "from kenyon.methods import Method, method\n@method\ndef of_the_shell():\n    return Method()\n"
    )
    stream.write_text(
        "import numpy as np, torch\n"
        "from kenyon.experiments import benchmark\n"
        "from kenyon.data import from_arrays\n"
        "@benchmark(backbone=lambda width, learners: torch.nn.Linear(3, width), width=4)\n"
        "def stream_of_the_shell(data):\n"
        "    return from_arrays(np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 4)\n"
    )
    config = configure(load_benchmark_file(stream), *load_method_file(method))
    assert shlex.split(command_of(config, [0], "there"))[2:5] == [str(stream), "--method", str(method)]
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command_of(config, [0], "there"))[2:5] == [stream.name, "--method", "my methods/mine.py"]
