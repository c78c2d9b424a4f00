"""`kenyon reproduce` on the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from kenyon.cli.reproduce import _measured
from kenyon.paper.reproduce import REPRODUCTIONS
from tests.cli.conftest import Said


def test_missing_runs_are_told_with_the_commands_that_make_them(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    asked = ("reproduce", "fig3e", "--no-train", "--device", "cpu", "--out", tmp_path)
    said = kenyon(*asked)
    assert said.code != 0 and "are missing" in said.err
    commands = [line.strip() for line in said.err.splitlines() if line.strip().startswith("kenyon run")]
    assert len(commands) == 4
    for command in commands:
        said = kenyon(*shlex.split(command)[1:], "--no-fwt", "--device", "cpu")
        assert said.code == 0, said.err
    said = kenyon(*asked)
    assert said.code == 0 and "CAF beats MCL" in said.out, said.err


def test_scores_of_games_that_are_missing(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    asked = ("reproduce", "fig6", "--no-train", "--device", "cpu", "--out", tmp_path)
    said = kenyon(*asked)
    assert said.code != 0 and "are missing" in said.err
    (command,) = (line.strip() for line in said.err.splitlines() if line.strip().startswith("kenyon run"))
    said = kenyon(*shlex.split(command)[1:], "--device", "cpu")
    assert said.code == 0 and "NAR" in said.out, said.err
    assert (tmp_path / "smoke/rl-mini/figure.png").is_file()
    said = kenyon(*asked)
    assert said.code == 0 and "caf-ewc accumulates more reward than ewc" in said.out, said.err
    said = kenyon("watch", tmp_path / "smoke/rl-mini/ewc", "--game", "catch", "--out", tmp_path / "catch.gif")
    assert said.code == 0 and "catch: score" in said.out, said.err
    assert (tmp_path / "catch.gif").read_bytes().startswith(b"GIF8")
    said = kenyon("watch", tmp_path / "smoke/rl-mini/ewc", "--game", "chess")
    assert said.code != 0 and "chess" in said.err


def test_the_list_says_what_each_needs(kenyon: Callable[..., Said]) -> None:
    said = kenyon("reproduce", "--list", "--json")
    found = json.loads(said.out)["reproductions"]
    assert list(found) == list(REPRODUCTIONS)
    assert found["fig3e"]["needs"] == "40 runs of r-cifar-100" and found["fig3b"]["needs"] == "nothing"
    assert "fig4ghi" in kenyon("reproduce").out


def test_a_figure_that_cannot_be_made_costs_no_other(kenyon: Callable[..., Said], tmp_path: Path) -> None:
    said = kenyon("reproduce", "fig3e", "fig3b", "fig6", "--no-train", "--device", "cpu", "--out", tmp_path)
    assert said.code == 1 and "fig3b: " in said.out and (tmp_path / "figures/smoke/fig3b.json").is_file()
    assert "fig3e: " in said.err and "fig6: " in said.err and said.err.count("are missing") == 2


def test_as_many_digits_as_the_standard_error_has() -> None:
    assert _measured(93.5, 1.234) == "93.5 ± 1.2" and _measured(85.0, 0.371) == "85.00 ± 0.37"
    assert _measured(1.0, 5e-5) == "1.0000 ± 0.0001" and _measured(123.0, 45.6) == "123 ± 46"
    assert _measured(87.5, None) == "87.5" and _measured(87.5, 0.0) == "87.5 ± 0" and _measured(None, None) == "-"
