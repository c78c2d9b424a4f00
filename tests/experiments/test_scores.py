"""What a search found, by hand: order, distance to the best, the table, and the pictures of it."""

from __future__ import annotations

import math
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kenyon.data import FIRST_SEED, SearchProtocol
from kenyon.experiments.found import Found, Score, toml_text
from kenyon.metrics import Summary
from kenyon.report.figures import _short, draw_search


def found_of(scores: list[Score], folder: Path, folds: int = 3) -> Found:
    return Found(
        benchmark="digits",
        method="caf-ewc",
        protocol=SearchProtocol("short"),
        stream="classes dealt to tasks anew",
        tasks=5,
        epochs=40,
        seeds=tuple(range(FIRST_SEED, FIRST_SEED + folds)),
        fixed={},
        scores=tuple(scores),
        made={"search": "by hand"},
        folder=folder,
    )


def test_a_choice_at_the_end_of_what_was_tried_is_told(tmp_path: Path) -> None:
    def chosen(*best: Any) -> list[str]:
        names, tried = ("lambda_sp", "gamma", "rounds", "fisher"), [(1e3, 1e4, 1e5), (0.1, 0.2, 0.3), (1, 2), "ab"]
        points = [dict(zip(names, point, strict=True)) for point in product(*tried)]
        points.sort(key=lambda point: tuple(point.values()) != best)
        return found_of([Score(p, Summary.of([80.0, 90.0, 70.0])) for p in points], tmp_path).at_the_end

    assert chosen(1e4, 0.2, 1, "a") == []
    ends = ["lambda_sp=1000 is the smallest that was tried", "gamma=0.3 is the largest that was tried"]
    assert chosen(1e3, 0.3, 2, "b") == ends


def test_distances_to_the_best_are_taken_fold_by_fold(tmp_path: Path) -> None:
    scores = [
        Score({"lambda_sp": 1e6, "fisher": "exact"}, Summary.of([80.0, 90.0, 70.0])),
        Score({"lambda_sp": 1e-8, "fisher": "exact"}, Summary.of([79.0, 88.0, 67.0])),
        Score({"lambda_sp": 3e38, "fisher": "exact"}, None),
    ]
    found = found_of(scores, tmp_path)
    behind = found.behind(scores[1])
    assert behind is not None and behind.mean == 2 and behind.sem == pytest.approx(1 / math.sqrt(3))
    assert found.behind(scores[2]) is None
    assert [line.split() for line in found.table().splitlines()[1:]] == [
        ["1000000", "exact", "80.00", "±", "5.77"],
        ["1e-08", "exact", "78.00", "±", "6.08", "2.00", "±", "0.58"],
        ["3e+38", "exact", "not", "finite"],
    ]
    body = tomllib.loads(found.to_toml())
    assert body["settings"] == {"lambda_sp": 1e6, "fisher": "exact"}
    assert body["origin"]["points"][1]["folds"] == [79.0, 88.0, 67.0] and body["origin"]["sem"] == 5.7735


# ---------------------------------------------------------------------- TOML

text = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text
values = plain | st.lists(plain, max_size=3)
flat = st.dictionaries(text, values, max_size=4)
documents = st.dictionaries(
    text,
    values | flat | st.lists(flat, min_size=1, max_size=3) | st.dictionaries(text, values | flat, max_size=3),
    max_size=5,
)


@given(documents, text)
def test_what_is_written_is_read_again(body: dict[str, Any], comment: str) -> None:
    written = toml_text(body, comment.translate(dict.fromkeys([*range(32), 127], " ")))
    assert tomllib.loads(written) == body


def test_not_a_number_has_its_word_and_others_are_refused() -> None:
    assert math.isnan(tomllib.loads(toml_text({"x": math.nan}))["x"])
    with pytest.raises(TypeError, match="NoneType"):
        toml_text({"x": None})


# ---------------------------------------------------------------------- pictures


def made_up(grid: dict[str, list[Any]], folds: int) -> list[Score]:
    rng = np.random.default_rng(0)
    scores = [
        Score(dict(zip(grid, point, strict=True)), Summary.of(list(70 + 10 * rng.random(folds))))
        for point in product(*grid.values())
    ]
    return sorted(scores, key=lambda score: -score.mean)


SP, AF, GAMMA = [1e4, 1e5, 1e6], [1e-8, 1e-6], [0.002, 0.02]


@pytest.mark.parametrize(
    ("grid", "folds", "labels"),
    [
        ({"lambda_sp": SP}, 3, ["lambda_sp", "1e6"]),
        ({"fisher": ["published", "exact"]}, 1, ["published", "exact"]),
        ({"lambda_sp": SP, "lambda_af": AF}, 3, ["lambda_sp", "lambda_af", "1e-8", "±", "not finite"]),
        ({"lambda_sp": SP, "lambda_af": AF, "gamma": GAMMA}, 1, ["gamma = 0.002", "gamma = 0.02"]),
        ({"lambda_sp": SP, "lambda_af": AF, "gamma": GAMMA, "width": [2, 3]}, 1, ["lambda_sp", "gamma", "width"]),
    ],
)
def test_every_number_of_settings_has_a_picture(
    grid: dict[str, list[Any]], folds: int, labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text as text
    scores = made_up(grid, folds)
    if "not finite" in labels:
        scores[-1] = Score(scores[-1].settings, None)
    path = draw_search(found_of(scores, tmp_path, folds), tmp_path / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    drawn = path.with_suffix(".svg").read_text()
    assert all(label in drawn for label in labels) and "short search" in drawn
    if 2 <= len(grid) <= 3:  # a map has every score in it
        assert all(f"{score.mean:.1f}" in drawn for score in scores if score.aac)


def test_points_that_are_no_grid_are_drawn_apart(tmp_path: Path) -> None:
    scores = made_up({"lambda_sp": SP, "lambda_af": AF}, 2)[:-1]
    assert draw_search(found_of(scores, tmp_path, 2), tmp_path / "figure.png").is_file()


def test_equal_scores_are_drawn(tmp_path: Path) -> None:
    scores = [Score(score.settings, Summary.of([50.0])) for score in made_up({"lambda_sp": SP, "gamma": GAMMA}, 1)]
    assert draw_search(found_of(scores, tmp_path, 1), tmp_path / "figure.png").is_file()


@pytest.mark.parametrize(
    ("value", "told"),
    [(1e-8, "1e-8"), (1e-4, "1e-4"), (0.02, "0.02"), (25000, "2.5e4"), (1000.0, "1000"), (0.0, "0"), (True, "true")],
)
def test_values_are_short_beside_a_picture(value: Any, told: str) -> None:
    assert _short(value) == told
