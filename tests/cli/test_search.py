"""`kenyon search` and `kenyon run --config` as a user meets them."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kenyon.cli.progress import RunProgress
from tests.cli.conftest import Said

SMALL = ["--epochs", 1, "--tasks", 2]
GRID = ["--set", "lambda_sp=10,1e6", "--set", "lambda_af=1e-8,0.01"]


def test_a_search_is_told_drawn_written_and_run(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = [
        "search",
        "digits",
        "-m",
        "caf-ewc",
        "--protocol",
        "short",
        "--folds",
        2,
        "--out",
        tmp_path,
        *SMALL,
        *GRID,
    ]
    said = kenyon(*words)
    assert said.code == 0, said.err
    assert "caf-ewc: 8 runs of 4 points" in said.err
    assert "short search: 2 tasks, 2 folds" in said.out and "20% of the training data" in said.out
    rows = [line.split() for line in said.out.splitlines() if "±" in line]
    means = [float(row[2]) for row in rows]
    assert len(rows) == 4 and means == sorted(means, reverse=True)
    folder = tmp_path / "search/digits/caf-ewc/short"
    assert (folder / "figure.png").is_file() and (folder / "figure.svg").is_file()
    body = tomllib.loads((folder / "best.toml").read_text())
    assert body["settings"] == {"lambda_sp": float(rows[0][0]), "lambda_af": float(rows[0][1])}

    again = kenyon(*words, "--json")
    assert "runs of" not in again.err
    told = json.loads(again.out.splitlines()[-1])
    assert told["best"] == body["settings"] and len(told["scores"]) == 4 and told["config"].endswith("best.toml")

    ran = kenyon("run", "--config", folder / "best.toml", "--seeds", 1, "--no-fwt", "--out", tmp_path, *SMALL)
    assert ran.code == 0, ran.err
    result = json.loads((tmp_path / "digits/caf-ewc/result.json").read_text())
    assert {name: result["config"]["hyper"][name] for name in body["settings"]} == body["settings"]
    assert list(json.loads(kenyon("show", tmp_path, "--json").out)) == ["digits"]
    shown = kenyon("show", folder)
    assert shown.code == 0 and "lambda_sp=1000000" in shown.out

    # What was searched is in no report beside what was run, and has no weights to look at.
    page = tmp_path / "report.html"
    assert kenyon("report", tmp_path, "--out", page).code == 0
    assert "1 result " in page.read_text() or "1 result," in page.read_text()
    analysed = kenyon("analyse", tmp_path, "--what", "change,diversity", "--json")
    assert list(json.loads(analysed.out.splitlines()[-1])["digits"]) == ["caf-ewc"], analysed.err
    refused = kenyon("analyse", folder)
    assert refused.code == 1 and "has only runs of a search" in refused.err and "best.toml" in refused.err
    assert not list(folder.rglob("analysis"))


def test_options_win_over_the_file(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("benchmark = 'digits'\nmethod = 'ewc'\nseeds = 3\n[settings]\nlambda_sp = 7\nepochs = 9\n")
    words = ["run", "digits", "-m", "ewc", "--config", file, "--out", tmp_path, "--no-fwt", *SMALL]
    said = kenyon(*words, "--seeds", "4,", "--set", "lambda_sp=8")
    assert said.code == 0, said.err
    result = json.loads((tmp_path / "digits/ewc/result.json").read_text())
    assert [run["seed"] for run in result["runs"]] == [4] and result["config"]["hyper"]["lambda_sp"] == 8
    assert result["config"]["training"]["epochs"] == 1


def test_ctrl_c_keeps_what_was_done(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "search",
        "digits",
        "-m",
        "ewc",
        "--epochs",
        2,
        "--tasks",
        2,
        "--set",
        "lambda_sp=1,2",
        "--out",
        tmp_path,
    ]

    def interrupting(*what: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "epoch_done", interrupting)
        said = kenyon(*words)
    assert said.code == 130 and "The same command continues" in said.err
    again = kenyon(*words)
    assert again.code == 0 and "continuing at 25%" in again.err


def test_nothing_finite_is_said_so(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("search", "digits", "-m", "ewc", "--out", tmp_path, *SMALL, "--set", "lambda_sp=3e38,2e38")
    assert said.code == 1 and "No point stayed finite" in said.err and "not finite" in said.out


def test_equal_points_are_counted(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("search", "digits", "-m", "ewc", "--out", tmp_path, *SMALL, "--set", "lambda_sp=1e-30,1e-29")
    assert said.code == 0 and "1 other point scores as much as the best" in said.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["digits", "-m", "ewc", "--set", "lambda_sp=3"], "nothing to choose from"),
        (["digits", "-m", "ewc,mas"], "one method, not of ewc,mas"),
        (["digits,r-cifar-100"], "one benchmark"),
        (["digit"], "Did you mean digits"),
        (["digits", "-m", "ewk"], "Did you mean ewc"),
        (["digits", "--set", "lamda_sp=1,2"], "lambda_sp"),
        (["digits", "--protocol", "shot"], "Did you mean short"),
        (["digits", "--trials", "3"], "--trials is for --optuna"),
        (["digits", "--together", "3"], "--together is for --optuna"),
        (["digits", "--share", "1.5"], "between 0 and 1"),
        (["digits", "--set", "epochs=1,2", "--epochs", "1"], "epochs is given twice"),
        (["digits", "-m", "rwalk"], "no published grid of rwalk on digits"),
        (["digits", "--set", "lambda_sp=" + ",".join(map(str, range(1, 4000))), "--folds", "3"], "11,997 runs"),
    ],
)
def test_searches_that_cannot_be_get_one_clear_message(
    kenyon: Callable[..., Said], tmp_path: Path, words: list[str], named: str
) -> None:
    said = kenyon("search", *words, "--out", tmp_path)
    assert said.code == 1 and named in said.err and "Traceback" not in said.err
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["r-cifar-100"], "is for digits, not for r-cifar-100"),
        (["-m", "mas"], "is for ewc, not for mas"),
        (["digits,r-cifar-100"], "is for digits, not for"),
    ],
)
def test_a_choice_for_others_is_refused(
    kenyon: Callable[..., Said], tmp_path: Path, words: list[str], named: str
) -> None:
    file = tmp_path / "best.toml"
    file.write_text("benchmark = 'digits'\nmethod = 'ewc'\n")
    said = kenyon("run", *words, "--config", file, "--out", tmp_path / "out")
    assert said.code == 1 and named in said.err and "best.toml" in said.err and "Traceback" not in said.err
