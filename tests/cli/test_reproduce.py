"""`kenyon reproduce` on the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from kenyon.reproduce import REPRODUCTIONS
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
