"""Grids on the command line: how they are asked for, told, shown and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kenyon.experiments import training
from kenyon.training import Trainer
from tests.cli.conftest import Said

SMALL = ["--epochs", "1", "--tasks", "2", "--no-fwt"]
GRID = ["--set", "lambda_sp=10,1e6", "--set", "lambda_af=1e-8,1e-06"]
POINTS = [f"lambda_sp={sp},lambda_af={af}" for sp in ("10", "1000000") for af in ("1e-08", "1e-06")]
LABELS = [f"caf-ewc[{point}]" for point in POINTS]


def test_a_grid_is_told_shown_and_stored(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "-m", "finetune,caf-ewc", "--seeds", 2, "--out", tmp_path, *SMALL, *GRID]
    said = kenyon(*words)
    assert said.code == 0, said.err
    assert "caf-ewc: 8 runs of 4 points" in said.err and "finetune: 2 seeds" in said.err
    assert all(point in said.out for point in POINTS) and "result.json a method and point" in said.out
    assert "digits, caf-ewc: 4 points of a grid" in said.out
    assert said.out.count(" * ") == 1 and "best point" in said.out
    assert (tmp_path / "digits/caf-ewc/lambda_sp=10,lambda_af=1e-08/result.json").is_file()
    assert (tmp_path / "digits/figure.svg").is_file()

    again = kenyon(*words, "--json")  # nothing is trained
    assert "runs of" not in again.err
    body = json.loads(again.out.splitlines()[-1])
    assert list(body["methods"]) == ["finetune", *LABELS]
    assert body["methods"][LABELS[1]]["point"] == {"lambda_sp": 10.0, "lambda_af": 1e-6}
    best = max(LABELS, key=lambda label: body["methods"][label]["aac"]["mean"])
    assert body["best"] == {"caf-ewc": best}

    shown = kenyon("show", tmp_path).out
    assert all(point in shown for point in POINTS) and f"{POINTS[LABELS.index(best)]} *" in shown
    assert f"`{best}` *" in kenyon("show", tmp_path, "--markdown").out
    assert list(json.loads(kenyon("show", tmp_path, "--json").out)["digits"]["methods"]) == [*LABELS, "finetune"]
    point = tmp_path / "digits/caf-ewc/lambda_sp=10,lambda_af=1e-06"
    for path in (point, point / "result.json"):
        details = kenyon("show", path).out
        assert "caf-ewc with" in details and POINTS[1] in details
        assert "share of 8 runs" in details and "learner 5" in details

    monkeypatch.setenv("COLUMNS", "80")  # little room: a line a value, and every value in full
    narrow = kenyon("show", tmp_path).out
    assert " lambda_sp=1000000, " in narrow and "  lambda_af=1e-06 " in narrow and "…" not in narrow


def test_one_point_is_extended_alone(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ["run", "-m", "ewc", "--out", tmp_path, *SMALL]
    kenyon(*words, "--seeds", 1, "--set", "lambda_sp=1,5")
    said = kenyon(*words, "--seeds", 3, "--set", "lambda_sp=5,")
    assert said.code == 0 and "ewc[lambda_sp=5]: 2 seeds" in said.err
    runs = {path.parent.name: len(json.loads(path.read_text())["runs"]) for path in tmp_path.rglob("result.json")}
    assert runs == {"lambda_sp=1": 1, "lambda_sp=5": 3}


def test_a_point_that_does_not_stay_finite_is_named(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path, *SMALL, "--set", "lambda_sp=1,3e38")
    assert said.code == 0
    name = f"ewc[lambda_sp={3e38}]"
    assert f"{name}: seed 0 stopped" in said.err and "The others go on." in said.err
    assert f"{name}: no numbers for seed 0" in said.out


def test_a_device_that_is_full_is_told(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Trainer):
        room = 3

        def validate(self) -> None:
            if len(self.fleet) > self.room:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            super().validate()

    monkeypatch.setattr(training, "Trainer", Small)
    words = ["run", "-m", "ewc", "--seeds", 2, *SMALL, "--set", "lambda_sp=1,10,100"]
    said = kenyon(*words, "--out", tmp_path / "some")
    assert said.code == 0
    assert "no memory for 6 runs at once" in said.err and "at most 3; the numbers stay the same" in said.err
    Small.room = 0
    said = kenyon(*words, "--out", tmp_path / "none")
    assert said.code == 1 and "single run of ewc[lambda_sp=1]" in said.err and "batch=" in said.err
    assert "Traceback" not in said.err


def test_a_picture_of_many_points_has_the_best(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    values = ",".join(str(10**n) for n in range(12))
    said = kenyon("run", "-m", "ewc", "--seeds", 1, "--out", tmp_path, *SMALL, "--set", f"lambda_sp={values}")
    assert said.code == 0, said.err
    assert "the best 8 points a method" in (tmp_path / "digits/figure.svg").read_text()


def test_fleets_are_bounded(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("run", "-m", "ewc", "--seeds", 3, "--out", tmp_path, *SMALL, "--fleet", 2)
    assert said.err.count("ewc: seed 0") == 1 and said.err.count("ewc: 2 seeds") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "lambda_sp=1000,,5000"], "lambda_sp=1000,,5000 has an empty place"),
        (["--set", "lambda_sp=,"], "empty place"),
        (["--set", "lambda_sp=,5"], "empty place"),
        (["--set", "lambda_sp=1000,1e3"], "lambda_sp has the value 1000 twice"),
        (["--set", "lambda_sp=1,much"], "lambda_sp must be a number, not 'much'"),
        (["--set", "lambda_sp=1,-1"], "lambda_sp must be a finite number"),
        (["--set", "epochs=1,2.5"], "epochs must be a whole number, not '2.5'"),
        (["--set", "fisher=published,guess"], "guess"),
        (["--set", "lamda_sp=1,2"], "lambda_sp"),
        (["--set", "lambda_sp=1", "--set", "lambda_sp=2"], "twice"),
        (["--set", "epochs=1,2", "--epochs", "1"], "epochs is given twice"),
        (["--set", "lambda_sp=" + ",".join(map(str, range(3000))), "--seeds", "4"], "12,000 runs"),
        (["--fleet", "0"], "--fleet"),
    ],
)
def test_grids_that_cannot_be_get_one_clear_message(
    kenyon: Callable[..., Said], tmp_path: Path, words: list[str], named: str
) -> None:
    said = kenyon("run", "-m", "ewc", "--out", tmp_path, *words)
    assert said.code == 1 and named in said.err and "Traceback" not in said.err
    assert not list(tmp_path.iterdir())
