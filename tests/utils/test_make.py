"""Views made from numbers, and drawn with matplotlib."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kenyon.report.plots import colours_of, draw_views
from kenyon.utils.views import (
    Bar,
    Series,
    View,
    ViewError,
    bars,
    checked,
    heatmap,
    images,
    lines,
    numbers,
    scatter,
    table,
)

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOLES = np.array([[1.0, np.nan], [0.5, -2.0]])


def every_kind() -> list[View]:
    series = [Series("ewc", [1, 2], HOLES[1], HOLES[1] * 0), Series("", [1, 2], HOLES[0], thin=True)]
    pictures = [{"src": f"data:image/png;base64,{DOT}", "alt": "a dot", "caption": "dot"}] * 3
    return [
        lines("a", "x", "y", series, "a note"),
        scatter("a", "x", "y", [Series("s", [1.0, np.nan], [2.0, 3.0], x_error=[0.1, 0.2], labels=["p", "q"])]),
        heatmap("a", "x", "y", ["1", "2"], ["1", "2"], HOLES, scale="diverging"),
        heatmap("a", "x", "y", ["1", "2"], ["1", "2"], HOLES),
        bars("a", "y", [Bar("ewc", 2.0, np.nan, (1.0, 3.0), 2.5), Bar("mas", -1.0)], reference="published"),
        images("a", pictures, 2),
        table("a", ["n", "v"], [["x", 1.23456], ["y", None]]),
    ]


def test_every_kind_is_drawn_alone_and_on_a_page(tmp_path: Path) -> None:
    views = every_kind()
    for number, view in enumerate(views):
        for path in draw_views([json.loads(json.dumps(view))], tmp_path / f"{number}.png", suffixes=(".png", ".svg")):
            assert path.stat().st_size > 500
    written = draw_views(views, tmp_path / "all.png", title="all", columns=3)
    assert [path.suffix for path in written] == [".png", ".svg", ".pdf"]
    assert all(path.stat().st_size > 2000 for path in written)


def test_numbers_for_json() -> None:
    assert numbers({"a": np.array([1.23456789, np.nan]), "b": (np.inf, 2)}) == {"a": [1.23457, None], "b": [None, 2]}


def test_what_is_made_is_checked() -> None:
    with pytest.raises(ViewError, match="y must have 2 entries"):
        lines("a", "x", "y", [Series("s", [1, 2], [1.0])])
    with pytest.raises(ViewError, match="1 rows x 1 columns"):
        heatmap("a", "x", "y", ["1"], ["1"], HOLES)
    with pytest.raises(ViewError, match="kind is one of"):
        checked({"kind": "cube", "title": "a", "data": []})


def test_methods_keep_their_colours_and_names_differ() -> None:
    found = colours_of(["ewc", "ewc[lambda_sp=1]", "SCL", "MCL"])
    assert found["ewc"] == colours_of(["mas", "ewc"])["ewc"] and len(set(found.values())) == 4
