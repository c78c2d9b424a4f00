"""`kenyon verify`, and how the other commands speak of files that have changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kenyon.experiments.results import Result
from tests.cli.conftest import Said
from tests.experiments.small import digits
from tests.report.made import made, saved
from tests.unsealed import write_unsealed


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return saved(tmp_path / "results", made(), made("mas"))


def test_a_table_and_counts(kenyon: Callable[..., Said], out: Path) -> None:
    said = kenyon("verify", out)
    assert said.code == 0 and "2 whole, 0 changed, 0 missing, 0 unreadable." in said.out
    path = out / "digits/ewc/result.json"
    path.write_text(path.read_text().replace('"seconds": 12.5', '"seconds": 12.6'))
    write_unsealed(out / "digits/mas/result.json")
    said = kenyon("verify", out)
    assert said.code == 1 and "1 unsealed, 1 changed, 0 missing" in said.out
    (row,) = (line for line in said.out.splitlines() if "ewc" in line)
    assert row.split() == ["digits/ewc/result.json", "changed", "its", "checksum", "is", "wrong"]
    told = json.loads(kenyon("verify", out, "--json").out)
    assert told["counts"] == {"whole": 0, "unsealed": 1, "changed": 1, "missing": 0, "unreadable": 0, "left over": 0}
    assert [file["state"] for file in told["files"]] == ["changed", "unsealed"]


def test_of_many_files_only_those_that_need_a_look(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    out = saved(tmp_path, *(made(point={"lambda_sp": number}) for number in range(30)))
    bad = out / "digits/ewc/lambda_sp=7/result.json"
    bad.write_text("{")
    said = kenyon("verify", out)
    assert said.code == 1 and "29 whole, 0 changed, 0 missing, 1 unreadable." in said.out
    assert "lambda_sp=7/" in said.out and "lambda_sp=8/" not in said.out


@pytest.mark.parametrize("words", [("show",), ("report",), ("analyse", "--what", "pertask")])
def test_what_has_changed_is_refused_with_words(
    kenyon: Callable[..., Said], out: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out)
    path = out / "digits/ewc/result.json"
    path.write_text(path.read_text().replace("90", "91", 1))
    command, *options = words
    said = kenyon(command, out, *options)
    assert said.code == 1 and not (out / "report.html").exists()
    told = " ".join(said.err.split())
    assert f"{path} has changed since Kenyon wrote it: its checksum is wrong." in told
    assert f"`kenyon verify --accept {path}`" in told
    assert kenyon("verify", "--accept", path).code == 0
    assert Result.load(path).unsealed == [0, 1, 2]
    assert kenyon("show", out).code == 0


def test_results_of_an_earlier_version_are_marked(kenyon: Callable[..., Said], out: Path) -> None:
    assert "Unsealed" not in kenyon("show", out / "digits/ewc").out
    write_unsealed(out / "digits/ewc/result.json")
    assert "Unsealed: an earlier version wrote the numbers of seeds 0, 1, 2" in kenyon("show", out / "digits/ewc").out
    told = json.loads(kenyon("show", out, "--json").out)["digits"]["methods"]
    assert told["ewc"]["unsealed"] == [0, 1, 2] and "unsealed" not in told["mas"]
    kenyon("report", out, "--out", out / "r.html")
    assert (out / "r.html").read_text().count("without a checksum") == 1


def test_reproduce_refuses_what_has_changed(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    digits(tmp_path, seeds=1)
    path = tmp_path / "digits/ewc/weights-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    said = kenyon("analyse", tmp_path, "--what", "flatness", "--set", "flatness.directions=1")
    assert said.code == 1 and "it is not the file that the result in this folder names" in " ".join(said.err.split())


def test_verify_answers_without_pytorch(out: Path) -> None:
    program = (
        "import sys; sys.argv = ['kenyon', 'verify', sys.argv[1]]\n"
        "from kenyon.cli import main\n"
        "main()\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    words = [sys.executable, "-c", program, str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 whole" in done.stdout
