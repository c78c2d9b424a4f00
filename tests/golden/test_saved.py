"""What version 0.1 has saved still works: results, unfinished trainings, learners and configuration files.

How `v0_1` was made is in `make_v0_1`. Like `test_golden` this compares with what the code computed before: the same
bits with the PyTorch and CPU of then, elsewhere nearly the same numbers.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import kenyon
from tests.golden.driver import TOLERANCES, read, same_machine
from tests.golden.learners import LEARNERS, answers, contents, load, teach
from tests.golden.saved_runs import (
    GAME_WORDS,
    RESULTS,
    UNFINISHED,
    analysed,
    resume,
    run_own,
)
from tests.golden.values import Values, differences
from tests.golden.workbench import command, last_json, saved

FOLDER = Path(__file__).parent / "v0_1"
EXPECTED = read(FOLDER / "expected.json")
BITS = same_machine(EXPECTED["origin"])
BEST = "search/digits/ewc/held-out/best.toml"


def check(name: str, values: Values) -> None:
    unequal = differences(name, EXPECTED["cases"][name], values, TOLERANCES["cpu"], bits=BITS)
    assert not unequal, "\n".join(map(str, unequal))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER / "results", tmp_path / "results"))


def bytes_below(out: Path) -> dict[str, bytes]:
    """Of all that was saved but pictures, which are drawn anew."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix not in (".png", ".svg"))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_every_file_is_whole() -> None:
    told = last_json(command("verify", FOLDER, "--json"))
    assert told["counts"]["whole"] >= 50
    assert not any(told["counts"][kind] for kind in ("changed", "missing", "unreadable"))


def test_results_are_shown(results: Path, tmp_path: Path) -> None:
    told = last_json(command("show", results, "--json"))
    assert {"digits", "digits-conv", "rl-mini"} <= set(told)
    for name in ("ewc", "caf-ewc", "joint", "discrete", "icl-mas"):
        body = json.loads((results / "digits" / name / "result.json").read_text())
        assert told["digits"]["methods"][name]["aac"] == body["summary"]["aac"]
    assert "lambda_sp=100" in command("show", results / "digits")
    assert "Diverged" in command("show", FOLDER / "diverged")
    assert "dodge" in command("show", results / "rl-mini" / "ewc")
    assert "| `ewc` |" in command("show", results / "digits", "--markdown")
    command("report", results / "digits", "--out", tmp_path / "report.html")
    assert "caf-ewc" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("asked", RESULTS, ids=lambda asked: f"{asked['benchmark']}-{asked['methods']}")
def test_finished_runs_are_not_trained_again(asked: dict[str, Any], results: Path) -> None:
    before = bytes_below(results)
    found = kenyon.run(**asked, out=results, device="cpu")
    assert bytes_below(results) == before
    for result in found.values():
        for summary in (result.aac, result.bwt, result.fwt):
            assert summary is None or summary.count
    check("results", saved(results, weights=False))


def test_finished_runs_of_the_command_line_are_not_trained_again(results: Path) -> None:
    before = bytes_below(results)
    command(*GAME_WORDS, "--out", results, "--device", "cpu")
    run_own("little-digits", "ewc", results, epochs=1)
    given: dict[str, Any] = {"lambda_sp": [1e4, 1e6], "tasks": 2, "epochs": 1, "width": 2}
    found = kenyon.search("digits", "ewc", out=results, device="cpu", **given)
    best = FOLDER / "results" / BEST
    assert found.best["lambda_sp"] == tomllib.loads(best.read_text())["settings"]["lambda_sp"]
    after = bytes_below(results)
    assert {name for name in before if after.get(name) != before[name]} <= {BEST}  # which says when it was chosen


def test_finished_sweeps_are_not_trained_again(tmp_path: Path) -> None:
    out = Path(shutil.copytree(FOLDER / "swept", tmp_path / "swept"))
    before = bytes_below(out)
    command("sweep", out / "many.toml", "--out", out, "--tasks", 2, "--no-fwt", "--device", "cpu")
    assert bytes_below(out) == before
    assert "si" in command("sweep", "--status", "--out", out)


def test_seeds_are_added_to_results(results: Path) -> None:
    asked = next(asked for asked in RESULTS if asked["methods"] == "caf-ewc")
    before = json.loads((results / "digits/caf-ewc/result.json").read_text())
    found = kenyon.run(**(asked | {"seeds": [0, 3, 5]}), out=results, device="cpu")["caf-ewc"]
    after = json.loads((results / "digits/caf-ewc/result.json").read_text())
    assert [run.seed for run in found.runs] == [0, 3, 5]
    assert [run for run in after["runs"] if run["seed"] != 5] == before["runs"]
    assert last_json(command("verify", results, "--json"))["counts"]["changed"] == 0


def test_saved_weights_are_analysed_and_play(results: Path, tmp_path: Path) -> None:
    check("analyses of saved weights", analysed(results))
    before = bytes_below(results / "digits" / "caf-ewc" / "analysis")
    command("analyse", results / "digits" / "caf-ewc", "--what", "diversity,pertask", "--device", "cpu")
    assert bytes_below(results / "digits" / "caf-ewc" / "analysis") == before
    gif = tmp_path / "catch.gif"
    command("watch", results / "rl-mini" / "ewc", "--game", "catch", "--seconds", 1, "--out", gif)
    assert gif.read_bytes()[:4] == b"GIF8"


@pytest.mark.parametrize("name", UNFINISHED)
def test_unfinished_trainings_go_on(name: str, tmp_path: Path) -> None:
    """To the numbers that follow from the saved state: those of a training from the beginning are others."""
    out = Path(shutil.copytree(FOLDER / "unfinished" / name, tmp_path / "out"))
    found = resume(out, UNFINISHED[name])
    assert not list(out.rglob("state-*"))
    check(f"unfinished {name}", found)


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_answer_and_learn_on(name: str, tmp_path: Path) -> None:
    learner = load(name, FOLDER / "learners")
    check(f"learner {name}", answers(learner, name))
    teach(learner, name, 2)
    check(f"learner {name}, a task later", answers(learner, name) | contents(learner, tmp_path / "one.safetensors"))


def test_configuration_files_are_taken(tmp_path: Path) -> None:
    configs, best = FOLDER / "configs", FOLDER / "results" / BEST
    small: dict[str, Any] = {"tasks": 2, "fwt": False, "device": "cpu"}
    found = kenyon.run(config=configs / "run.toml", out=tmp_path / "run", **small)
    assert set(found) == {"finetune", "caf-ewc[lambda_sp=1000]", "caf-ewc[lambda_sp=100000]"}
    assert all([run.seed for run in result.runs] == [0, 3] for result in found.values())
    chosen = kenyon.run(config=best, epochs=1, seeds=1, out=tmp_path / "best", **small)["ewc"]
    assert chosen.config["hyper"]["lambda_sp"] == tomllib.loads(best.read_text())["settings"]["lambda_sp"]
    words = ["--tasks", 2, "--no-fwt", "--device", "cpu", "--json"]
    told = last_json(command("run", "--config", configs / "words.toml", "--out", tmp_path / "words", *words))
    assert len(told["benchmarks"]) == 2
    games = tmp_path / "games"
    command("sweep", configs / "games.toml", "--out", games, "--device", "cpu")
    assert sorted(path.parent.name for path in games.rglob("scores.json")) == [
        "finetune",
        "lambda_sp=10",
        "lambda_sp=1000",
    ]


def test_fixtures_are_small_and_name_no_machine() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    for path in files:
        assert not any(word in path.read_bytes() for word in (b"/home/", b"/root/", b"/tmp/", b"/work/")), path
