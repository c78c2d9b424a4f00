"""The numbers of the pictures are plain and right, and they can be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import trapezoid

from kenyon.errors import ResultsError
from kenyon.paper.theory import bounds_data, fig3b_data
from kenyon.report.theory_figure import draw_bounds, draw_fig3b


def test_fig3b_numbers() -> None:
    data = json.loads(json.dumps(fig3b_data(mu=1, sigma=2, a=4, task_optimum=2, betas=(0, 0.5, 1)), allow_nan=False))
    # F sigma^2 = 1: the mode is halfway between m = 1 + 4 (1-beta) and 2, the variance 4 / 2.
    assert [one["mean"] for one in data["targets"]] == pytest.approx([3.5, 2.5, 1.5])
    assert [one["variance"] for one in data["targets"]] == pytest.approx([2, 2, 2])
    assert [one["forgotten_mean"] for one in data["targets"]] == pytest.approx([5, 3, 1])
    assert [one["log_z"] for one in data["targets"]] == pytest.approx([0, -0.25 * 16 / 8, 0])
    assert data["predictive"]["best"]["beta"] == pytest.approx(0.75)
    for density in (data["prior"], data["old"], *(one["density"] for one in data["targets"])):
        assert trapezoid(density, data["theta"]) == pytest.approx(1, abs=2e-3)
    top = [data["theta"][int(np.argmax(one["density"]))] for one in data["targets"]]
    assert top == pytest.approx([3.5, 2.5, 1.5], abs=0.05)


def test_a_task_that_says_nothing_leaves_the_forgotten_belief() -> None:
    for one in fig3b_data(task_fisher=0)["targets"]:
        assert one["mean"] == one["forgotten_mean"] and one["variance"] == one["forgotten_variance"]


def test_bounds_numbers() -> None:
    data = json.loads(json.dumps(bounds_data(), allow_nan=False))
    assert sum(data["learners"]["c1"][0].values()) == pytest.approx(data["learners"]["single_c1"])
    assert sum(data["learners"]["c2"][0].values()) == pytest.approx(data["learners"]["single_c2"])
    one, five = data["parts"]
    for name in ("plasticity", "stability"):
        assert five[name]["total"] < one[name]["total"] < 1
        flat, _, sharp = data["radius"][name]
        assert min(flat["total"]) < min(sharp["total"])
        assert data["radius"]["b"][flat["best"]] > data["radius"]["b"][sharp["best"]]


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_drawn(tmp_path: Path, suffix: str) -> None:
    made = [
        draw_fig3b(fig3b_data(points=60), tmp_path / "new" / f"one.{suffix}"),
        draw_bounds(bounds_data(points=20), tmp_path / f"two.{suffix}"),
    ]
    for path in made:
        assert path.stat().st_size > 5000 and path.with_suffix(".svg").exists()


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="Cannot write"):
        draw_fig3b(fig3b_data(points=20), tmp_path / "file" / "one.png")
    with pytest.raises(ResultsError, match="Cannot write"):
        draw_fig3b(fig3b_data(points=20), tmp_path / "one.nothing")
