"""The request: one declaration for the command line, TOML, Python and sweeps."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import kenyon
from kenyon.cli.app import app
from kenyon.errors import ConfigError
from kenyon.experiments.runner import plan_all
from kenyon.experiments.spec import OPTIONS, SHORTCUTS, Experiment, from_command_line, merge_spec, read_spec

GAMES: dict[str, Any] = {"games": ["catch"], "steps": 512, "evaluations": 1, "episodes": 1, "device": "cpu"}


def options_of(command: str) -> dict[str, Any]:
    program: Any = get_command(app)
    return {parameter.name: parameter for parameter in program.commands[command].params}


def test_every_field_is_an_option_a_keyword_and_a_key_of_a_file(tmp_path: Path) -> None:
    keywords = inspect.signature(kenyon.run).parameters
    options = options_of("run")
    for field in fields(Experiment):
        option = OPTIONS[field.name]
        shown = options[option.name or field.name]
        assert (
            shown.opts[: len(option.flags)] == [flag.partition("/")[0] for flag in option.flags] or not option.flags
        )
        assert shown.help == option.help and option.form is not None
        assert {"benchmarks": "benchmark", "settings": "overrides"}.get(field.name, field.name) in keywords
    assert SHORTCUTS.keys() <= options.keys()


def test_a_file_may_have_every_field_and_what_is_given_wins(tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text('seeds = [3]\ntasks = 2\nfwt = false\nfleet = 7\nkeep = "every"\nout = "there"\ndevice = "cpu"\n')
    request = merge_spec(read_spec(path), {"fleet": 5, "fwt": True, "settings": {"epochs": 1}})
    assert (request.seeds, request.tasks, request.fwt, request.fleet) == ([3], 2, False, 5)
    assert (request.keep, request.out, request.device) == ("every", "there", "cpu")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tasks = 'two'", "tasks must be a whole number, not 'two'"),
        ("fwt = 1", "fwt must be true or false, not 1"),
        ("device = 3", "device must be text, not 3"),
        ("fleet = 0", "--fleet takes a whole number of runs, at least 1, not 0"),
        ("keep = 'all'", "keep must be last or every, not 'all'"),
        ("task = 2", "no key of a configuration called 'task'. Did you mean tasks"),
    ],
)
def test_fields_of_a_file_are_checked(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        merge_spec(read_spec(path), {})


def test_settings_and_their_own_options_have_one_converter() -> None:
    for text, value in (("3", 3), ("3,4", [3, 4]), ("5,", [5])):
        for given in ({"learners": text}, {"set_": [f"learners={text}"]}):
            request = from_command_line({"benchmark": "digits", "method": "caf-ewc", **given})
            assert request.settings == {"learners": value}
    with pytest.raises(ConfigError, match=r"learners must be a whole number, not 'x'"):
        from_command_line({"benchmark": "digits", "method": "caf-ewc", "learners": "x"})
    with pytest.raises(ConfigError, match="given twice: with --learners and with --set"):
        from_command_line({"method": "caf-ewc", "learners": "3", "set_": ["learners=4"]})


def test_images_and_games_of_one_request_get_their_own_settings(tmp_path: Path) -> None:
    request = Experiment.of(
        benchmarks=("digits", "rl-mini"),
        methods=("ewc",),
        settings={"steps": 1024, "patience": 3, "epochs": 2},
        device="cpu",
        out=tmp_path,
    )
    digits, games = plan_all(request).values()
    assert digits.points[0].config.training.patience == 3 and digits.seeds == (0, 1, 2, 3, 4)
    assert games.points[0].config.training.steps == 1024 and games.seeds == (0, 1, 2) and len(games.games) == 5
    assert digits.points[0].config.training.epochs == games.points[0].config.training.epochs == 2


def test_python_runs_games(tmp_path: Path) -> None:
    result: Any = kenyon.run("rl-mini", "ewc", seeds=1, out=tmp_path, **GAMES)["ewc"]
    assert result.games == ["catch"] and (tmp_path / "rl-mini" / "ewc" / "scores.json").is_file()
    config = json.loads((tmp_path / "rl-mini" / "ewc" / "scores.json").read_text())["config"]
    assert "tasks" not in config and list(config) == [
        "benchmark", "method", "games", "training", "architecture", "hyper",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("benchmark", "given", "named"),
    [
        ("rl-mini", {"tasks": 2}, "--tasks is for images, and rl-mini is a suite of games"),
        ("rl-mini", {"log": "wandb"}, "--log is for images"),
        ("digits", {"games": "catch"}, "--games is for suites of games: atari"),
        ("rl-mini", {"games": "catch", "patience": 3}, "no setting of ewc called 'patience'"),
        ("rl-mini", {"games": "snatch"}, "no game of rl-mini called 'snatch'. Did you mean catch"),
        ("rl-mini", {"methods": "er"}, "er works on the images of a task"),
        ("rl-mini", {"progress": object()}, "object with the methods fleet_starts, epoch_done, update_done"),
    ],
)
def test_what_does_not_apply_is_refused(benchmark: str, given: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        kenyon.run(benchmark, **{"methods": "ewc", "seeds": 1, "out": tmp_path / "out"} | given)
    assert not (tmp_path / "out").exists()
