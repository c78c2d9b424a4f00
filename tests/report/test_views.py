"""The form of a view: a valid one can be drawn, and for any other the error names the place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.errors import ResultsError
from kenyon.report.page import write_report
from kenyon.report.page.html import Figures, Ids
from kenyon.utils import views as form
from kenyon.utils.views import KINDS, ViewError, checked
from tests.report.made import Page, made, saved
from tests.report.test_page import check_sound

DOT = "data:image/png;base64,iVBORw0KGgo="
GOOD: dict[str, dict[str, Any]] = {
    "lines": {
        "kind": "lines",
        "title": "L",
        "x": "a",
        "y": "b",
        "data": [{"name": "ewc", "x": [0, 0.5], "y": [1, None], "error": [0.1, None], "dashed": True}],
    },
    "scatter": {
        "kind": "scatter",
        "title": "S",
        "x": "a",
        "y": "b",
        "data": [{"name": "n", "x": [1], "y": [2], "x_error": [0.1], "y_error": [0.2], "labels": ["p"]}],
    },
    "heatmap": {
        "kind": "heatmap",
        "title": "H",
        "x": "a",
        "y": "b",
        "rows": ["r"],
        "columns": [1, 2],
        "data": [[1.5, None]],
        "scale": "diverging",
    },
    "bars": {
        "kind": "bars",
        "title": "B",
        "x": "a",
        "data": [{"name": "n", "value": 1, "error": 0.1, "points": [0.9, 1.1], "reference": 2}],
    },
    "images": {"kind": "images", "title": "I", "data": [{"src": DOT, "alt": "a dot", "caption": "one"}]},
    "table": {"kind": "table", "title": "T", "columns": ["a", "b"], "data": [["x", 1], ["y", None]]},
}


def test_numpy_values_become_pythons() -> None:
    data = [{"name": np.str_("ewc"), "x": np.array([1.5]), "y": [np.float64(2.0)], "thin": np.bool_(True)}]
    assert checked({**GOOD["lines"], "data": data})["data"] == [{"name": "ewc", "x": [1.5], "y": [2.0], "thin": True}]


def test_every_kind_has_an_example_and_the_documented_one_is_right() -> None:
    assert set(GOOD) == set(KINDS)
    for view in GOOD.values():
        assert checked(view)["title"] == view["title"]
    text = (form.__doc__ or "").partition("An example, complete:")[2]
    assert checked(json.loads(text))["kind"] == "lines"


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("lines", {"kind": "pie"}, "kind is one of lines"),
        ("lines", {"title": " "}, "title must be text that is not empty"),
        ("lines", {"x": 3}, "x: Expected `str`, got `int`"),
        ("lines", {"digits": 9}, "digits: Expected `int` <= 6"),
        ("lines", {"data": [{"name": "n", "x": [1, 2], "y": [1]}]}, "data[0]: y must have 2 entries, not 1"),
        ("lines", {"data": [{"name": "n", "x": [1], "y": [float("nan")]}]}, "data[0].y"),
        ("lines", {"data": [{"name": "n", "x": [10**400], "y": [1]}]}, "data[0].x"),
        ("lines", {"data": [{"x": [1], "y": [1]}]}, "data[0]: Object missing required field `name`"),
        (
            "scatter",
            {"data": [{"name": "n", "x": [1], "y": [1], "labels": []}]},
            "data[0]: labels must have 1 entries, not 0",
        ),
        ("heatmap", {"data": [[1, 2], [3, 4]]}, "data must be 1 rows x 2 columns"),
        ("heatmap", {"range": [1, 1]}, "range must be [low, high]"),
        ("heatmap", {"data": [{"name": "f", "data": [[1]]}]}, "data[0].data must be 1 rows x 2 columns"),
        ("bars", {"data": [{"name": "n"}]}, "data[0]: Object missing required field `value`"),
        ("images", {"data": [{"src": "https://example.org/a.png", "alt": "a"}]}, "data[0]: src must be a data URI"),
        (
            "images",
            {"data": [{"src": "data:image/svg+xml;base64,AAAA", "alt": "a"}]},
            "data[0]: src must be a data URI",
        ),
        ("table", {"data": [["x"]]}, "data[0] must have 2 entries, not 1"),
        ("table", {"columns": {1, 2}}, "columns"),
        ("table", {"data": [["x", object()]]}, "a view must hold text, numbers, lists and objects, not <object"),
        ("heatmap", {"data": [{"name": "f", "data": [[1, 2]]}, [1, 2]]}, "rows of numbers or frames, not both"),
        ("heatmap", {"scale": "other"}, "scale: Invalid enum value 'other'"),
        ("images", {"across": 0}, "across: Expected `int` >= 1"),
        ("table", {"origin": {"a": {"b": 1}}}, "origin[...]: Expected"),
    ],
)
def test_what_is_wrong_is_told(kind: str, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ViewError) as caught:
        checked({**GOOD[kind], **change})
    assert told in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**6)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(list(KINDS)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "x", "data", "value"]), inner)
    ),
    max_leaves=6,
)


def _damaged(view: dict[str, Any], path: list[int], value: Any) -> Any:
    """Return the view with the value at some place in it."""
    view = copy.deepcopy(view)
    at: Any = view
    for step in path:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(at[key], (dict, list)) or step % 5 == 0:
            at[key] = value
            return view
        at = at[key]
    return view


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(list(GOOD)), st.lists(st.integers(0, 20), min_size=1, max_size=5), JSON)
def test_whatever_passes_can_be_drawn(kind: str, path: list[int], value: Any) -> None:
    try:
        view = checked(_damaged(GOOD[kind], path, value))
    except ViewError:
        return
    figures = Figures(Ids())
    figures.figure(view, "here")
    json.dumps(figures.views, allow_nan=False)


def test_analyses_beside_a_result_are_shown_by_name_and_method(tmp_path: Path) -> None:
    folder = saved(tmp_path / "results", made("ewc"), made("mas"))
    for method in ("ewc", "mas"):
        place = folder / "digits" / method / "analysis"
        place.mkdir()
        (place / "all_kinds.json").write_text(json.dumps(list(GOOD.values())))
        (place / "raw.json").write_text('{"another": "program\'s"}')
    high = {**GOOD["heatmap"], "data": [[4, -9]]}
    (folder / "digits" / "mas" / "analysis" / "all_kinds.json").write_text(json.dumps([high]))
    page = Page(write_report(folder, tmp_path / "r.html").path.read_text())
    check_sound(page)
    assert "All kinds" in page.text and "ewc: L" in page.text and "mas: H" in page.text
    assert "results/digits/ewc/analysis/all_kinds.json" in page.text and "another" not in page.text
    maps = [v for v in page.values["views"].values() if v["title"] in ("ewc: H", "mas: H")]
    assert [v["range"] for v in maps] == [[-9, 9]] * 2  # side by side, on one scale
    assert [a["src"] for tag, a in page.elements if tag == "img"] == [DOT]


@pytest.mark.parametrize(("text", "told"), [("{", "cannot be read as JSON"), ('{"kind": "pie"}', "kind is one of")])
def test_a_damaged_analysis_is_named(tmp_path: Path, text: str, told: str) -> None:
    folder = saved(tmp_path / "results", made("ewc"))
    place = folder / "digits" / "ewc" / "analysis"
    place.mkdir()
    (place / "bad.json").write_text(text)
    with pytest.raises(ResultsError, match=told) as caught:
        write_report(folder, tmp_path / "r.html")
    assert "analysis/bad.json" in str(caught.value)


@pytest.mark.parametrize("count", [2, 5, 6, 9])
def test_names_of_many_lines_stand_beside_the_chart(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from kenyon.report import plots

    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, *_: drawn.append(figure))
    data = [{"name": f"a method with a long name {i}", "x": [0, 1, 2], "y": [i, i + 1, i]} for i in range(count)]
    view = checked({"kind": "lines", "title": "L", "x": "a", "y": "b", "data": data})
    plots.draw_views([view, view], tmp_path / "drawn.png", columns=2)
    [figure] = drawn
    figure.draw_without_rendering()
    for part in figure.subfigs:
        [axes] = part.axes
        legend = axes.get_legend()
        assert legend is not None
        names = legend.get_window_extent()
        assert (names.x0 >= axes.get_window_extent().x1) == (count > plots.MANY)
        assert (
            names.x1 <= part.bbox.x1 + 1 and axes.get_window_extent().width > 200
        )  # nothing is cut off, or squeezed


@pytest.mark.parametrize(
    ("names", "slanted"), [(["1", "2", "3"], False), (["a-name-that-is-long", "another-one", "b"], True)]
)
def test_names_of_columns_do_not_run_into_one_another(
    names: list[str], slanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from kenyon.report import plots

    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, *_: drawn.append(figure))
    view = {**GOOD["heatmap"], "columns": names, "rows": ["r"], "data": [[0.04, -1.0, None]], "scale": "diverging"}
    plots.draw_views([checked({**view, "digits": 1})], tmp_path / "map.png")
    axes = drawn[0].subfigs[0].axes[0]
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == names
    assert {label.get_rotation() for label in labels} == {30.0 if slanted else 0.0}
    assert [text.get_text() for text in axes.texts] == ["+0.0", "-1.0"]


@pytest.mark.parametrize(("measures", "styles"), [(("a", "a"), (0, 0)), (("a", "b"), (0, 2))])
def test_charts_of_one_measure_are_drawn_alike(
    measures: tuple[str, str], styles: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dots for values near each other and far from 0, and for all charts of the same measure."""
    from matplotlib.figure import Figure

    from kenyon.report import plots

    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, *_: drawn.append(figure))
    near, far = ([{"name": "one", "value": value}, {"name": "two", "value": 90.0}] for value in (80.0, 20.0))
    views = [
        checked({"kind": "bars", "title": "B", "x": x, "data": data})
        for x, data in zip(measures, (near, far), strict=True)
    ]
    plots.draw_views(views, tmp_path / "drawn.png", columns=2)
    assert tuple(len(part.axes[0].patches) for part in drawn[0].subfigs) == styles  # bars
