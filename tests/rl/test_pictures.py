"""Fig. 6 b to e as views of plain numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kenyon.report.plots import draw_views
from kenyon.rl.scores import Measured, fig6, measured
from kenyon.utils.views import checked

NAN = math.nan
RUN = np.array([[5.0, NAN], [10.0, NAN], [8.0, 20.0], [6.0, 40.0]])
BEST = np.array([10.0, 50.0])


def methods(runs: int) -> dict[str, Measured]:
    return {name: measured([RUN * scale] * (runs - 1) + [RUN], BEST) for name, scale in (("finetune", 1), ("ewc", 2))}


def test_four_views_with_their_numbers(tmp_path: Path) -> None:
    views = fig6(methods(2), ["catch", "reach"])
    assert [view["kind"] for view in views] == ["lines", "bars", "bars", "bars"]
    for view in views:
        checked(view)
        assert "2 runs" in view["note"]
    finetune, ewc = views[0]["data"]
    assert finetune["x"] == [0.5, 1, 1.5, 2]
    assert finetune["y"] == pytest.approx([0.5, 1.0, 1.2, 1.4]) and finetune["error"] == [0, 0, 0, 0]
    assert ewc["y"] == pytest.approx([0.75, 1.5, 1.8, 2.1]) and ewc["error"] == pytest.approx([0.25, 0.5, 0.6, 0.7])
    assert "catch - reach" in views[0]["note"]
    bars = {view["x"]: {bar["name"]: bar["value"] for bar in view["data"]} for view in views[1:]}
    assert bars["NAR"] == {"finetune": pytest.approx(1.4), "ewc": pytest.approx(2.1)}
    assert bars["NP"] == {"finetune": pytest.approx(0.8), "ewc": pytest.approx(1.2)}
    assert bars["NS"] == {"finetune": pytest.approx(0.6), "ewc": pytest.approx(0.6)}
    assert all(len(bar["points"]) == 2 for view in views[1:] for bar in view["data"])
    (drawn,) = draw_views(views, tmp_path / "fig6", columns=2, suffixes=(".png",))
    assert drawn.stat().st_size > 10_000


def test_a_single_run_has_no_bands_or_bars_of_error() -> None:
    views = fig6(methods(1), ["catch", "reach"])
    assert all("error" not in series for series in views[0]["data"])
    assert all(bar["error"] is None and "points" not in bar for view in views[1:] for bar in view["data"])


def test_one_game_has_only_its_reward() -> None:
    views = fig6({"ewc": measured([np.array([[2.0], [3.0]])], np.array([3.0]))}, ["catch"])
    assert [len(view["data"]) for view in views] == [1, 1, 0, 0]
