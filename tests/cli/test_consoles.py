"""Streams as shells and schedulers give them: full, of few signs, or read by nobody."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kenyon.cli import main
from kenyon.cli.consoles import OutputError, speaking
from kenyon.cli.progress import FleetBar
from tests.cli.conftest import Said

RUN = ("run", "digits", "-m", "finetune", "--seeds", "1", "--epochs", "1", "--tasks", "2", "--no-fwt")
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")


@full
@pytest.mark.parametrize("words", [("--version",), ("list", "methods"), ("list", "--json")])
def test_a_full_standard_output_is_told_in_one_sentence(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        monkeypatch.setattr(sys, "argv", ["kenyon", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: Standard output cannot be written to: No space left") and "Traceback" not in said


@full
def test_a_training_goes_on_where_nobody_can_be_told_of_it(
    kenyon: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w", buffering=1) as nowhere:
        monkeypatch.setattr(sys, "stderr", nowhere)
        said = kenyon(*RUN, "--out", tmp_path)
    assert said.code == 0 and "finetune" in said.out and (tmp_path / "digits/finetune/result.json").is_file()


@pytest.mark.parametrize(
    ("encoding", "seen"), [("ascii", "a ? b ?"), ("utf-8", "a ± b \\udcff"), ("latin-1", "a ± b ?")]
)
def test_signs_that_a_stream_does_not_have(encoding: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    with speaking():
        print("a ± b \udcff")
    assert stream.buffer.getvalue().decode(encoding).strip() == seen  # type: ignore[attr-defined]
    assert sys.stdout is stream


@full
def test_what_was_buffered_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        with pytest.raises(OutputError), speaking():
            print("little")


@pytest.mark.parametrize("width", [45, 60, 80, 120])
def test_the_time_left_is_told_whole_however_narrow_a_terminal_is(width: int) -> None:
    written = io.StringIO()
    with FleetBar(Console(file=written, force_terminal=True, width=width, color_system=None)) as bar:
        bar.begins("caf-ewc", "5 seeds", 0, 100)
        bar.goes_on(37, "6 runs of 3 points, task 4/5, epoch 337/1000")
        bar.bars.refresh()
    last = next(line for line in reversed(written.getvalue().splitlines()) if "caf-ewc" in line)
    assert "0:00:00 left -:--:--" in last and "━" in last
