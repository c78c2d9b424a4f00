"""A clock that jumps changes no number and no time."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from kenyon.cli.progress import RunProgress
from kenyon.experiments.runner import run
from tests.experiments.small import digits, numbers, weights
from tests.nothing_lost.small import GIVEN


@pytest.mark.parametrize("jump", [-1e6, 1e6, 0.0])
def test_a_clock_that_jumps(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any, notices: list[str]
) -> None:
    """Every clock jumps after every third question, and stands still where it does not jump at all."""
    asked = [0]

    def jumping() -> float:
        asked[0] += 1
        return 1e9 + jump * (asked[0] // 3)

    from rich.console import Console

    lines = io.StringIO()
    monkeypatch.setattr("kenyon.cli.progress.LINE_EVERY", -1.0)
    for name in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, name, jumping)
    with RunProgress(Console(file=lines, width=200)) as progress:
        result = digits(tmp_path, progress=progress, **GIVEN)["ewc"]
    monkeypatch.undo()
    assert (numbers(result), weights(tmp_path)) == whole
    assert result.seconds >= 0 and "left" in lines.getvalue() and "-" not in lines.getvalue()
    assert asked[0] > 20 and not notices


def test_a_clock_that_is_set_back_while_games_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [0]

    def jumping() -> float:
        asked[0] += 1
        return 1e9 - 3600.0 * (asked[0] // 3)

    monkeypatch.setattr(time, "perf_counter", jumping)
    short = {"steps": 1024, "evaluations": 1, "episodes": 2}
    result = run("rl-mini", "finetune", 1, games=["catch", "reach"], out=tmp_path, **short)["finetune"]
    assert asked[0] > 20 and all(fleet.seconds >= 0 for fleet in result.fleets)
