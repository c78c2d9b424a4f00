"""The page has the numbers of the results, makes no requests, and withstands hostile results."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import kenyon
from kenyon.benchmarks.registry import find_benchmark
from kenyon.errors import KenyonError, ResultsError
from kenyon.experiments.results import Result
from kenyon.methods import METHODS
from kenyon.report.page import SECTIONS, Section, document, section, write_report
from kenyon.report.page.entries import OF_ALL
from kenyon.report.page.summary import pm
from kenyon.report.tables import duration
from tests.cli.conftest import Said
from tests.cli.conftest import kenyon as kenyon_program  # noqa: F401 - a fixture
from tests.report.made import Page, made, saved
from tests.unsealed import unsealed

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"


def page_of(folder: Path, out: Path, **options: bool) -> Page:
    return Page(write_report(folder, out / "report.html", **options).path.read_text())


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Copy two benchmarks with complete methods, so that later measurements change nothing here."""
    folder = tmp_path_factory.mktemp("made")
    for benchmark in ("r-cifar-100", "s-cifar-100"):
        for method in ("finetune", "ewc", "mcl-ewc", "caf-ewc", "random-init"):
            place = folder / "h200" / benchmark / method
            place.mkdir(parents=True)
            shutil.copy(H200 / benchmark / method / "result.json", place)  # without points of grids
    return page_of(folder / "h200", folder)


def check_sound(page: Page) -> None:
    """Every reference leads to an element of the file, and only the two scripts of the page run."""
    assert len(page.ids) == len(set(page.ids))
    for name in ("href", "src", "action", "srcset", "poster", "data", "formaction", "background", "style"):
        for value in page.attributes(name):
            assert value.startswith(("#", "data:")), (name, value)
    for target in page.attributes("href"):
        assert target == "data:," or target[1:] in page.ids
    for name in ("aria-labelledby", "data-frames", "data-view"):
        assert set(page.attributes(name)) <= set(page.ids)
    assert set(page.values["views"]) == set(page.attributes("data-view"))
    kinds = [tag for tag, _ in page.elements]
    assert kinds.count("script") == 3 and kinds.count("style") == 1
    assert not {"iframe", "object", "embed", "base", "form"} & set(kinds)
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    for _, body in page.raw:
        assert not re.search(r"url\(|@import|fetch\(|XMLHttp|WebSocket|innerHTML|eval\(|import\(", body)
    for made_table in page.tables:
        assert made_table["caption"].strip()
        head, *body = made_table["rows"]
        assert all(cell["tag"] == "th" and cell["scope"] == "col" for cell in head)
        assert all(row[0]["tag"] == "th" and row[0]["scope"] == "row" and len(row) == len(head) for row in body)


def test_it_is_whole_and_asks_nobody(h200: Page) -> None:
    check_sound(h200)
    kinds = [tag for tag, _ in h200.elements]
    assert kinds.count("main") == kinds.count("header") == kinds.count("footer") == kinds.count("h1") == 1
    assert kinds.index("a") < kinds.index("header"), "the link that skips comes first"


def test_every_number_of_the_table_is_the_results_and_leads_to_its_origin(h200: Page) -> None:
    tables = [t for t in h200.tables if t["class"] == "summary" and "," not in t["caption"].split(":")[0]]
    assert [t["caption"].split(":")[0] for t in tables] == ["r-cifar-100", "s-cifar-100"]
    for table, benchmark in zip(tables, ("r-cifar-100", "s-cifar-100"), strict=True):
        head = [cell["text"] for cell in table["rows"][0]]
        assert len(table["rows"]) == 1 + 4
        for row in table["rows"][1:]:
            cells = dict(zip(head, row, strict=True))
            method = cells["method"]["text"].strip()
            r = Result.load(H200 / benchmark / method / "result.json")
            assert r.aac is not None
            for name, summary in (("AAC, %", r.aac), ("BWT", r.bwt), ("FWT", r.fwt), ("just learned, %", r.learned)):
                assert summary is not None
                assert cells[name]["text"].replace(" (best)", "") == pm(summary)
                assert float(cells[name]["data-value"]) == summary.mean
            assert cells["parameters"]["text"] == f"{r.parameters:,}" and cells["time"]["text"] == duration(r.seconds)
            assert cells["runs"]["text"] == "5"
            known = find_benchmark(benchmark).published.get(method)
            assert cells["published"]["text"] == ("–" if known is None else f"{known:.2f}")
            if known is not None:
                apart = (r.aac.mean - known) / r.aac.sem
                assert cells["difference"]["text"] == f"{apart:+.1f} SE".replace("-", "−")
            links = {link for cell in row for link in cell["links"]}
            assert len(links) == 1 and all(cell["links"] for cell in row)
            assert f"h200/{benchmark}/{method}/result.json" in h200.text


def test_the_best_of_a_column_is_marked_in_words_too(h200: Page) -> None:
    table = next(t for t in h200.tables if t["class"] == "summary")
    best = [
        (row[0]["text"], i) for row in table["rows"][1:] for i, cell in enumerate(row) if "(best)" in cell["text"]
    ]
    means = {row[0]["text"]: float(row[1]["data-value"]) for row in table["rows"][1:]}
    assert [name for name, column in best if column == 1] == [max(means, key=lambda name: means[name])]
    assert len(best) == 4  # AAC, BWT, FWT, just learned


def test_charts_have_the_values_of_the_results(h200: Page) -> None:
    views = h200.values["views"]
    r = Result.load(H200 / "r-cifar-100" / "caf-ewc" / "result.json")
    maps = [v for k, v in views.items() if "r-cifar-100" in k and v["kind"] == "heatmap" and v["title"] == "caf-ewc"]
    matrix, expertise = maps
    assert [frame["name"] for frame in matrix["data"]] == ["mean of the runs", *(f"seed {s}" for s in range(5))]
    assert matrix["data"][3]["data"] == r.runs[2].accuracy
    assert matrix["data"][0]["data"][19][0] == pytest.approx(r.accuracy[:, 19, 0].mean(), abs=0.0501)
    assert expertise["data"][1]["data"][4][7] == pytest.approx(r.expertise[1, 7, 4], abs=0.0501)
    lines = next(v for k, v in views.items() if "r-cifar-100" in k and v["kind"] == "lines")
    curve = next(one for one in lines["data"] if one["name"] == "caf-ewc")
    assert r.aac is not None and r.bwt is not None and r.learned is not None
    assert curve["y"][-1] == pytest.approx(r.aac.mean, abs=1e-4)
    assert curve["error"][-1] == pytest.approx(r.aac.sem, abs=1e-4)
    scatter = next(v for k, v in views.items() if "r-cifar-100" in k and v["kind"] == "scatter")
    point = next(one for one in scatter["data"] if one["name"] == "caf-ewc")
    assert (point["x"][0], point["y"][0]) == pytest.approx((r.learned.mean, r.bwt.mean), abs=1e-4)
    # The same numbers stand there as text.
    numbers = [t for t in h200.tables if t["caption"].startswith("caf-ewc; rows: tasks learned")]
    assert numbers[0]["rows"][20][1]["text"] == f"{r.accuracy[:, 19, 0].mean():.1f}"


def test_origins_have_every_setting(h200: Page) -> None:
    for words in ("training.epochs", "hyper.lambda_sp", "NVIDIA H200", "bfloat16", "torch 2.11.0+cu130"):
        assert words in h200.text
    assert "random-init" in h200.text  # not in the tables, but forward transfer stands on it


def test_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    folder = saved(tmp_path / "results", made("ewc"), made("caf-ewc", learners=3))
    first = write_report(folder, tmp_path / "a.html").path.read_bytes()
    assert write_report(folder, tmp_path / "b.html").path.read_bytes() == first


HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!--",
    "x" * 3000,
    "‮עברית 汉字 🦟 \u0007\u2028\ud800",
    "__proto__",
    "javascript:alert(1)",
)


def hostile(tmp_path: Path) -> Path:
    some = [made(name, "<b>bench & 'mark'</b>", learners=2, names=name[:60]) for name in HOSTILE]
    folder = saved(tmp_path / "results", *some)
    first = folder / "<b>bench & 'mark'<_b>" / "method-0" / "analysis"
    first.mkdir()
    table = {
        "kind": "table",
        "title": HOSTILE[0],
        "columns": [HOSTILE[1]],
        "data": [[HOSTILE[2]]],
        "note": HOSTILE[3],
    }
    lines = {
        "kind": "lines",
        "title": "t",
        "x": HOSTILE[0],
        "y": "y",
        "data": [{"name": "__proto__", "x": [1], "y": [2]}],
    }
    (first / "<i>.json").write_text(json.dumps([table, lines | {"origin": {HOSTILE[0]: HOSTILE[1]}}]))
    return folder


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    page = page_of(hostile(tmp_path), tmp_path)
    check_sound(page)
    assert "img" not in {tag for tag, _ in page.elements}
    cells = {row[0]["text"] for t in page.tables if t["class"] == "summary" for row in t["rows"]}
    assert set(HOSTILE[:5]) <= cells  # whole, as text
    assert "__proto__" in page.values["styles"]


def test_odd_results(tmp_path: Path) -> None:
    """No runs, all diverged, some diverged, one task, joint training, one run, NaN."""
    whole = made("caf-ewc", learners=3)
    half = replace(whole.runs[0], accuracy=whole.runs[0].accuracy[:2], diverged=[2, 1])
    gone = replace(whole.runs[1], accuracy=[], own_accuracy=[], cosine=[], euclidean=[], diverged=[0, 0])
    hole = made("mas")
    hole.runs[0].accuracy[-1][0] = math.nan
    hole.alone[1][2] = math.nan
    odd = [
        replace(made("si"), runs=[], fleets=[], alone={}),
        replace(made("ewc"), runs=[replace(run, diverged=[0, 0], accuracy=[]) for run in made("ewc").runs]),
        replace(whole, runs=[half, gone, whole.runs[2]]),
        made("joint", joint=True),
        made("finetune", seeds=1),
        hole,
    ]
    page = page_of(saved(tmp_path / "results", *odd), tmp_path)
    check_sound(page)
    (table,) = [t for t in page.tables if t["class"] == "summary"]
    rows = {row[0]["text"]: [cell["text"].replace(" (best)", "") for cell in row[1:]] for row in table["rows"]}
    assert rows["si"][:2] == ["–", "0"] and rows["ewc"][:2] == ["–", "0 of 3"]
    assert rows["caf-ewc"][1] == "1 of 3" and "±" not in rows["finetune"][0]
    assert rows["joint"][2:5] == ["–", "–", "–"]
    assert rows["mas"][0] == f"{pm(hole.aac)}, n 2" and hole.aac is not None and len(hole.aac.runs) == 3
    assert "diverged in task 3, epoch 2" in page.text
    frames = [f["name"] for v in page.values["views"].values() if v["title"] == "caf-ewc" for f in v["data"]]
    assert "seed 0, diverged" in frames
    one = page_of(saved(tmp_path / "one", made("ewc", tasks=1)), tmp_path)
    check_sound(one)


def test_runs_of_a_search_are_told_apart_and_named(tmp_path: Path) -> None:
    def searched(name: str) -> list[Result]:
        return [made("ewc", point={"lambda_sp": v}, search={"name": name, "share": 0.2}) for v in (1, 2)]

    folder = tmp_path / "search"
    for name in ("held-out", "short"):
        saved(folder, *searched(name), place=name)
    page = page_of(folder, tmp_path)
    check_sound(page)
    summaries = [t["caption"].partition(":")[0] for t in page.tables if t["class"] == "summary"]
    assert summaries == ["digits (held-out search)", "digits (short search)"]
    assert page.text.count("They are no test results.") == 2 and "Upright lines: published" not in page.text
    standing = [v["x"] for v in page.values["views"].values() if v["kind"] == "bars"]
    assert set(standing) == {"average accuracy on held-out training data, %"}


def test_the_reference_is_counted_apart_and_explained(tmp_path: Path) -> None:
    few = replace(made("mas"), alone={1: [88.0] * 4})
    folder = saved(tmp_path / "results", made("ewc"), few, made("random-init", seeds=2))
    page = page_of(folder, tmp_path)
    check_sound(page)
    assert "2 results, 6 runs, 2 more of random-init" in page.text
    assert "random-init learns every task from a random start" in page.text
    assert page.tables[1]["caption"] == "All benchmarks"
    assert [cell["text"] for cell in page.tables[1]["rows"][1][:3]] == ["digits", "2", "6"]
    (table,) = [t for t in page.tables if t["class"] == "summary"]
    fwt = [cell["text"] for cell in table["rows"][0]].index("FWT")
    told = {row[0]["text"]: row[fwt]["text"].replace(" (best)", "") for row in table["rows"]}
    assert told["mas"].endswith(", n 1") and ", n" not in told["ewc"]
    assert "random-init" not in page_of(saved(tmp_path / "without", made("ewc")), tmp_path).text


def test_a_grid_has_a_row_a_point_and_marks_the_best(tmp_path: Path) -> None:
    points = [made("ewc", point={"lambda_sp": value}, seeds=2) for value in range(30)]
    page = page_of(saved(tmp_path / "results", *points, made("mas", seeds=2)), tmp_path)
    check_sound(page)
    (table,) = [t for t in page.tables if t["class"] == "summary"]
    names = [row[0]["text"].strip() for row in table["rows"][1:]]
    assert len(names) == 31 and sum("★" in name for name in names) == 1
    assert [n.removesuffix(" ★") for n in names[1:4]] == [f"ewc[lambda_sp={v}]" for v in range(3)]
    lines = next(v for v in page.values["views"].values() if v["kind"] == "lines")
    assert len(lines["data"]) == 9 and "Drawn are the best 9 of 31" in page.text  # eight points a method
    unequal = [made("ewc", point={"lambda_sp": value}, seeds=2 + value) for value in range(2)]
    assert "★" not in page_of(saved(tmp_path / "unequal", *unequal), tmp_path).text  # on other seeds: not comparable


def test_points_of_a_method_that_has_a_result_of_its_own_stand_below_it(tmp_path: Path) -> None:
    points = [made("ewc", point={"lambda_sp": v, "lambda_af": 1e-5}, seeds=2) for v in (5, 10, 200)]
    results = saved(tmp_path / "results", made("mas", seeds=2), made("ewc", seeds=2), *points)
    page = page_of(results, tmp_path)
    check_sound(page)
    main, folded = (t for t in page.tables if t["class"] == "summary")
    assert [row[0]["text"].strip() for row in main["rows"][1:]] == ["mas", "ewc"]
    values = [f"lambda_sp={v}, lambda_af=1e-05" for v in (5, 10, 200)]
    assert [row[0]["text"].strip().removesuffix(" ★") for row in folded["rows"][1:]] == values
    assert "ewc: 3 points of a grid" in page.text and folded["caption"].startswith("digits, ewc:")
    views = list(page.values["views"].values())
    for kind, count in (("lines", 2), ("scatter", 2)):
        assert len(next(v for v in views if v["kind"] == kind)["data"]) == count
    chart = next(v for v in views if v["kind"] == "bars" and v["title"] == "ewc")
    assert chart["data"][0]["name"] == "ewc" and {one["name"] for one in chart["data"][1:]} == set(values)
    assert all(one["label"].startswith("ewc") for one in chart["data"])  # in the colour of the method


def test_a_page_that_would_be_too_large_leaves_single_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "results", made("ewc", tasks=12, seeds=8))
    whole = write_report(folder, tmp_path / "report.html").size
    monkeypatch.setattr(document, "LARGEST", whole - 1)
    page = page_of(folder, tmp_path)
    assert "leaves out the matrices of single runs" in page.text
    assert all(len(v["data"]) == 1 for v in page.values["views"].values() if v["kind"] == "heatmap")
    monkeypatch.setattr(document, "LARGEST", 1000)
    with pytest.raises(ResultsError, match="fewer results"):
        write_report(folder, tmp_path / "report.html")


def test_a_section_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kenyon.report.page.entries.SECTIONS", dict(SECTIONS))

    @section("spread")
    def spread(group: object) -> Section:
        return Section("Spread of my own", [{"kind": "table", "title": "T", "columns": ["a"], "data": [["b"]]}])

    page = page_of(saved(tmp_path / "results", made()), tmp_path)
    assert "Spread of my own" in page.text
    section("spread")(lambda group: Section("Wrong", [{"kind": "pie"}]))
    with pytest.raises(KenyonError, match=r"The section 'Wrong' has a view that is not valid: .* kind is one of"):
        page_of(tmp_path / "results", tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda b: b["runs"][0].update(accuracy=[[1, 2], [3]]), "seed 0 is not rows of 4 numbers"),
        (lambda b: b["runs"][0].update(accuracy="no"), "Expected `array`, got `str` - at `$.runs[0].accuracy`"),
        (lambda b: b["runs"][1].update(tasks=[1, 2, 3, 4]), "Expected `str`, got `int` - at `$.runs[1].tasks[0]`"),
        (lambda b: b["config"].update(method=3), "Expected `str`, got `int` - at `$.config.method`"),
        (lambda b: b["config"].pop("hyper"), "required field `hyper` - at `$.config`"),
        (lambda b: b["fleets"][0].update(device=None), "Expected `str`, got `null` - at `$.fleets[0].device`"),
        (lambda b: b["runs"][0].update(accuracy=[], diverged=None), "did not diverge"),
        (lambda b: b.update(parameters="many"), "Expected `int`, got `str` - at `$.parameters`"),
        (
            lambda b: b["runs"][0]["accuracy"][0].__setitem__(0, 10**400),
            "range - at `$.runs[0].accuracy[0][0]`",
        ),
        (lambda b: b["fleets"][0].update(seconds=math.nan), "seconds of a fleet are nan"),
        (lambda b: b["runs"][0].update(own_accuracy=[[1, 2]]), "own_accuracy of the run of seed 0 is not 4 rows"),
        (lambda b: b["runs"][0].update(cosine=[0.1]), "diversity of the run of seed 0 is not 4 numbers"),
        (lambda b: b.pop("runs"), "cannot be read as a Kenyon result: Object missing required field `runs`"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, change: Callable[..., object], told: str) -> None:
    folder = saved(tmp_path / "results", made(), made("mas"))
    path = folder / "digits" / "ewc" / "result.json"
    body = unsealed(path)
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(ResultsError, match=re.escape(told)) as caught:
        write_report(folder, tmp_path / "report.html")
    assert "digits/ewc/result.json" in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_the_command(kenyon_program: Callable[..., Said], tmp_path: Path) -> None:  # noqa: F811
    folder = saved(tmp_path / "results", made(), made("mas"))
    said = kenyon_program("report", folder, "--out", tmp_path / "r.html")
    assert said.code == 0 and "2 results of 1 benchmark" in said.out
    said = kenyon_program("report", folder, "--out", tmp_path / "r.html", "--json")
    assert json.loads(said.out)["bytes"] == (tmp_path / "r.html").stat().st_size
    said = kenyon_program("report", tmp_path / "nothing")
    assert said.code == 1 and "There is nothing at" in said.err
    (tmp_path / "empty").mkdir()
    said = kenyon_program("report", tmp_path / "empty")
    assert said.code == 1 and "no results (result.json)" in said.err


def test_from_python_before_and_after_the_package_was_imported(tmp_path: Path) -> None:
    folder = saved(tmp_path / "results", made())
    import_module("kenyon.report.tables")  # now kenyon.report is the package
    assert isinstance(kenyon.report, ModuleType)
    assert kenyon.report(folder, tmp_path / "a.html") == tmp_path / "a.html"  # type: ignore[operator]
    assert kenyon.report(folder / "digits" / "ewc" / "result.json", tmp_path) == tmp_path / "report.html"  # type: ignore[operator]


def test_charts_leave_out_points_of_a_grid_and_never_a_method(tmp_path: Path) -> None:
    methods = [made(name) for name in METHODS if name != "random-init"]
    points = [made("caf-ewc", point={"gamma": v}) for v in range(40)]
    page = page_of(saved(tmp_path / "all", *methods), tmp_path)
    [overview] = [view for view in page.values["views"].values() if view["title"] == "digits"]
    assert {one["name"] for one in overview["data"]} == {r.method for r in methods} and len(methods) > OF_ALL
    page = page_of(saved(tmp_path / "points", *points), tmp_path)
    assert "Of many points of a grid the best are drawn." in page.text
