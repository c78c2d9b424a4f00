"""`kenyon analyse` as a user calls it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kenyon.experiments import run
from tests.cli.conftest import Said
from tests.replicas import write_cifar_100
from tests.unsealed import unsealed

SMALL = ["--epochs", "1", "--tasks", "2", "--no-fwt", "--device", "cpu"]
QUICK = ["--set", "flatness.directions=1", "--set", "flatness.steps=3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    run("digits", "ewc,caf-ewc", 1, tasks=2, epochs=1, fwt=False, device="cpu", out=out)
    return out


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_everything_of_everything(kenyon: Callable[..., Said], out: Path) -> None:
    said = kenyon("analyse", out, *QUICK, "--json")
    assert said.code == 0, said.err
    written = json.loads(said.out.splitlines()[-1])["digits"]
    assert set(written["ewc"]) == {"pertask", "discrepancy", "flatness", "change"}
    assert set(written["caf-ewc"]) == set(written["ewc"]) | {"diversity", "expertise"}
    for method, names in written.items():
        for name, path in names.items():
            assert Path(path) == out / "digits" / method / "analysis" / f"{name}.json"
            assert json.loads(Path(path).read_text())["view"]["kind"]
            assert Path(path).with_suffix(".png").is_file() and Path(path).with_suffix(".svg").is_file()
    for name in ("pertask", "discrepancy", "flatness", "change"):
        assert (out / "digits" / "analysis" / f"{name}.json").is_file()
        assert (out / "digits" / "analysis" / f"{name}.png").is_file()
    assert "ewc: flatness, seed 0" in said.err
    again = kenyon("analyse", out, "--what", "flatness,discrepancy", *QUICK)
    assert again.code == 0 and "seed 0" not in again.err  # nothing is measured again
    assert "filter sharpness" in again.out
    # Analyses are no results: showing and running go on as before.
    assert kenyon("show", out).code == 0


@pytest.mark.parametrize("left", [".png", ".svg", None])
def test_what_was_half_drawn_is_drawn(left: str | None, kenyon: Callable[..., Said], out: Path) -> None:
    """As after an end between the first picture and the second, or before both."""
    words = ("analyse", out, "--what", "pertask")
    assert kenyon(*words).code == 0
    pictures = [path for path in out.rglob("pertask.*") if path.suffix in (".png", ".svg")]
    assert len(pictures) == 6  # of two methods, and of both side by side
    for path in pictures:
        if path.suffix != left:
            path.unlink()
    said = kenyon(*words)
    assert said.code == 0 and "seed 0" not in said.err and all(path.stat().st_size > 1000 for path in pictures)
    drawn = {path: path.stat().st_mtime_ns for path in pictures if path.parent.parent.name != "digits"}
    assert kenyon(*words).code == 0
    assert {path: path.stat().st_mtime_ns for path in drawn} == drawn  # and not once more


def test_points_of_a_grid_and_folders_are_named_as_they_are(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    out = tmp_path / "a [bold] folder"
    said = kenyon("run", "digits", "--method", "ewc", "--seeds", "1", *SMALL, "--set", "rate=0.1,0.01", "--out", out)
    assert said.code == 0 and f"Saved in {out}" in said.out, said.err
    said = kenyon("analyse", out, "--what", "change")
    assert "ewc[rate=0.1]" in said.out and "ewc[rate=0.01]" in said.out


def test_labels_are_whole_however_little_room_there_is(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ("--set", "gamma=0.02,0.03", "--set", "afs=uniform,", "--learners", "2,")
    kenyon("run", "digits", "--method", "caf-ewc", "--seeds", "1", *SMALL, *grid, "--out", tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    said = kenyon("analyse", tmp_path, "--what", "flatness", "--set", "flatness.directions=1")
    column = "".join(line.strip().partition("  ")[0] for line in said.out.splitlines())
    assert "caf-ewc[learners=2,gamma=0.02,afs=uniform]" in column and "gamma=0.03,afs=uniform]" in column
    assert "…" not in said.out


def test_what_did_not_stay_finite_is_left_out(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    words = ("run", "digits", "--method", "ewc", "--seeds", "1", *SMALL, "--set", "rate=0.01,1e30", "--out", tmp_path)
    assert kenyon(*words).code == 0
    said = kenyon("analyse", tmp_path, "--what", "change")
    assert said.code == 0 and "ewc[rate=1e+30]: left out, for no run stayed finite." in said.err
    assert "ewc[rate=0.01]" in said.out and "1e+30" not in said.out


def test_some_of_some(kenyon: Callable[..., Said], out: Path) -> None:
    said = kenyon("analyse", out, "--what", "pertask,expertise", "--method", "caf-ewc", "--benchmark", "digits")
    assert said.code == 0, said.err
    assert not (out / "digits" / "ewc" / "analysis").exists() and not (out / "digits" / "analysis").exists()
    assert (out / "digits" / "caf-ewc" / "analysis" / "expertise.png").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--what", "flatnes"], "Did you mean flatness"),
        (["--what", ","], "names no analysis"),
        (["--method", "caf"], "caf-ewc"),
        (["--benchmark", "omniglot"], "no results of omniglot"),
        (["--what", "diversity", "--method", "ewc"], "it has one learner"),
        (["--what", "gradcam"], "no convolution"),
        (["--set", "flatness.steps"], "ANALYSIS.NAME=VALUE"),
        (["--set", "flatness.step=3"], "Did you mean steps"),
        (["--set", "flatness.steps=three"], "a whole number"),
        (["--set", "flatness.steps=4"], "odd number"),
        (["--set", "change.steps=4"], "setting of change"),
        (["--what", "pertask", "--set", "flatness.steps=3"], "among those asked for"),
    ],
)
def test_what_is_wrong_is_told(kenyon: Callable[..., Said], out: Path, words: list[str], told: str) -> None:
    said = kenyon("analyse", out, *words)
    assert said.code == 1 and told in said.err, said.err


def test_missing_weights_and_folders(kenyon: Callable[..., Said], out: Path) -> None:
    (out / "digits/ewc/weights-0.safetensors").unlink()
    said = kenyon("analyse", out, "--what", "flatness")
    assert said.code == 1 and "weights-0.safetensors" in said.err and "kenyon run digits --method ewc" in said.err
    assert "nothing at" in kenyon("analyse", out / "nowhere").err


def test_a_folder_that_cannot_be_written_to(kenyon: Callable[..., Said], out: Path, tmp_path: Path) -> None:
    (out / "digits/caf-ewc/analysis").write_text("in the way")
    said = kenyon("analyse", out, "--what", "flatness", "--method", "caf-ewc")
    assert said.code == 1 and "Cannot write" in said.err and "--out" in said.err
    elsewhere = tmp_path / "elsewhere"
    said = kenyon("analyse", out, "--what", "pertask", "--out", elsewhere, "--json")
    assert said.code == 0, said.err
    assert f"Written in {elsewhere}" in said.err
    assert (elsewhere / "digits/analysis/pertask.png").is_file()
    there = json.loads(said.out.splitlines()[-1])["digits"]["caf-ewc"]["pertask"]
    assert Path(there) == elsewhere / "digits/caf-ewc/analysis/pertask.json" and Path(there).is_file()
    written = (elsewhere / "digits/analysis/pertask.json").stat().st_mtime_ns
    assert kenyon("analyse", out, "--what", "pertask", "--out", elsewhere).code == 0
    assert (elsewhere / "digits/analysis/pertask.json").stat().st_mtime_ns == written  # nothing was new


@pytest.mark.parametrize(
    ("name", "option"), [("benchmark", "--benchmark mine.py"), ("method", "--method ewc,mine.py")]
)
def test_what_is_of_a_users_file_is_asked_for(kenyon: Callable[..., Said], out: Path, name: str, option: str) -> None:
    file = out / "digits/caf-ewc/result.json"
    body = unsealed(file)
    body["config"][name] = "mine"
    file.write_text(json.dumps(body))
    said = kenyon("analyse", out, "--what", "pertask")
    assert said.code == 1 and f"a {name} called 'mine'" in said.err and option in said.err


def test_analyses_of_runs_that_have_changed_are_not_shown(kenyon: Callable[..., Said], out: Path) -> None:
    """Trained anew, or measured anew in one of two results that a picture compares."""

    def shown() -> tuple[bool, bool, bool]:
        assert kenyon("report", out, "--out", out / "report.html").code == 0
        page = (out / "report.html").read_text()
        return (
            "digits: accuracy of every task in the end" in page,
            ">ewc: accuracy of every task" in page,
            ">caf-ewc: accuracy of every task" in page,
        )

    assert kenyon("analyse", out, "--what", "pertask").code == 0
    assert shown() == (True, True, True)
    file = out / "digits/ewc/result.json"
    body = unsealed(file)
    body["runs"][0]["accuracy"][-1][0] -= 1
    file.write_text(json.dumps(body))
    assert shown() == (False, False, True)
    assert kenyon("analyse", out, "--what", "pertask", "--method", "ewc").code == 0
    assert shown() == (False, True, True)
    assert kenyon("analyse", out, "--what", "pertask").code == 0
    assert shown() == (True, True, True)
    (out / "digits/caf-ewc/analysis/pertask.json").unlink()
    assert shown() == (False, True, False)


@pytest.mark.parametrize("what", ["weights", "folder"])
def test_a_disk_that_fails_is_told(
    what: str, kenyon: Callable[..., Said], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the weights that are analysed; at the lock of the folder that a run is added to."""
    weights, opened, locked = out / "digits/ewc/weights-0.safetensors", Path.open, os.open

    def failing(path: Any, *more: Any, **options: Any) -> Any:
        if str(path) in (str(weights), str(weights.parent)) and not (more and more[0] == "w"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return (locked if more and isinstance(more[0], int) else opened)(path, *more, **options)

    if what == "weights":
        monkeypatch.setattr(Path, "open", failing)
        said = kenyon("analyse", out, "--what", "change")
    else:
        monkeypatch.setattr("kenyon.utils.files.os.open", failing)
        monkeypatch.setattr("kenyon.utils.files.sync_folder", lambda folder: None)
        said = kenyon("run", "digits", "-m", "ewc", "--seeds", 2, *SMALL[:2], "--tasks", 2, "--no-fwt", "--out", out)
    assert said.code == 1 and "Error: " in said.err and "Input/output error" in said.err, said


def test_a_picture_that_is_missing_is_drawn(kenyon: Callable[..., Said], out: Path) -> None:
    """Killed between two pictures, or one was removed: also what was measured before gets both."""
    words = ("analyse", out, "--what", "pertask", "--method", "ewc")
    assert kenyon(*words).code == 0
    pictures = [out / "digits/ewc/analysis" / f"pertask{suffix}" for suffix in (".png", ".svg")]
    for picture in pictures:
        picture.unlink()
        assert kenyon(*words).code == 0 and picture.is_file()


def test_analyses_are_in_the_report(kenyon: Callable[..., Said], out: Path) -> None:
    assert kenyon("analyse", out, *QUICK).code == 0
    said = kenyon("report", out, "--out", out / "report.html")
    assert said.code == 0, said.err
    page = (out / "report.html").read_text()
    for words in ("Flatness", "Discrepancy", "caf-ewc: loss along random directions", "digits: loss along random"):
        assert words in page


def test_grad_cam_of_pictures(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    write_cifar_100(tmp_path / "data", per_class_train=3, per_class_test=1)
    words = ["--data", tmp_path / "data", "--set", "width=2"]
    said = kenyon("run", "s-cifar-100", "-m", "ewc,mcl-ewc", "--seeds", 1, *SMALL, "--out", tmp_path / "out", *words)
    assert said.code == 0, said.err
    said = kenyon(
        "analyse", tmp_path / "out", "--what", "gradcam", "--data", tmp_path / "data", "--set", "gradcam.images=3"
    )
    assert said.code == 0, said.err
    folder = tmp_path / "out/s-cifar-100"
    own = json.loads((folder / "mcl-ewc/analysis/gradcam.json").read_text())
    assert _rows(own["view"]) == ["image", "together", *(f"learner {k}" for k in range(1, 6))]
    assert own["view"]["across"] == 3 and len(own["runs"][0]["own_maps"]) == 5
    both = json.loads((folder / "analysis/gradcam.json").read_text())["view"]
    assert _rows(both) == ["image", "ewc", "mcl-ewc"] and both["kind"] == "images"
    assert (folder / "analysis/gradcam.png").read_bytes().startswith(b"\x89PNG")


def _rows(view: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(picture["alt"].partition(":")[0] for picture in view["data"]))
