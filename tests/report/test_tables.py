"""Tables in a terminal: their contents, and that they fit 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from kenyon.experiments.compare import load_results
from kenyon.experiments.config import configure
from kenyon.report.formats import overview_markdown, results_markdown
from kenyon.report.tables import best_points, duration, results_json, results_tables, rough_duration
from tests.report.made import made

H200 = Path("benchmarks/h200")


def told(*tables: Table, width: int = 80) -> str:
    written = io.StringIO()
    for table in tables:
        Console(file=written, width=width).print(table)
    return written.getvalue()


def test_points_have_a_table_of_their_own_below_the_methods() -> None:
    points = {f"ewc[lambda_sp={v}]": made("ewc", point={"lambda_sp": v}, seeds=2) for v in (1, 2)}
    methods, grid = results_tables({"mas": made("mas", seeds=2), **points, "ewc": made("ewc", seeds=2)})
    assert "lambda_sp" not in told(methods) and "AAC: " in told(methods)
    assert "digits, ewc: 2 points of a grid" in told(grid) and " lambda_sp=2" in told(grid)
    assert "AAC: " not in told(grid)  # it was said above
    (alone,) = results_tables(points)
    assert "AAC: " in told(alone)


def test_who_has_another_number_of_runs_is_told() -> None:
    some = {"ewc": made("ewc", seeds=3), "mas": made("mas", seeds=3), "si": made("si", seeds=1)}
    text = " ".join(told(*results_tables(some)).split())
    assert "3 runs, mean" in text and "1 run: si." in text


def test_runs_that_diverged_are_told() -> None:
    whole = made("ewc", seeds=3)
    some = replace(whole, runs=[replace(whole.runs[0], accuracy=[], diverged=[0, 0]), *whole.runs[1:]])
    text = " ".join(told(*results_tables({"ewc": some, "mas": made("mas")})).split())
    assert "Diverged: ewc 1 of 3 runs." in text and "Diverged" not in told(*results_tables({"ewc": whole}))
    (grid,) = results_tables({"ewc[a=1]": replace(some, point={"a": 1}), "ewc[a=2]": replace(whole, point={"a": 2})})
    assert " 2 of 3 " in told(grid) and "Diverged: a=1 1 of 3 runs." in " ".join(told(grid).split())
    assert "| 2 of 3 |" in results_markdown({"digits": {"ewc": some}})


def test_a_long_name_never_cuts_numbers() -> None:
    long = "a-name-that-goes-on-" * 8
    text = told(*results_tables({long: made(long, learners=3), "ewc": made("ewc")}))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert text.count(" ± ") == 1 + 2 * 3 + 1  # of the title, AAC, BWT and FWT of both, Cos of one


def test_narrow_terminals_show_every_name_and_accuracy_and_say_what_is_left_out() -> None:
    results = {name: made(name, learners=3) for name in ("caf-ewc", "mcl-mas")}
    (table,) = results_tables(results)
    whole = told(table)
    assert "Left out" not in whole and all(title in whole for title in ("BWT", "FWT", "Cos", "time"))
    for width in range(24, 80):
        text = told(table, width=width)
        heading = next(line for line in text.splitlines() if "AAC %" in line)
        rows = [line for line in text.splitlines() if line.strip().startswith(tuple(results))]
        assert max(map(len, text.splitlines())) <= width
        assert len(rows) == 2 and all(" ± " in row for row in rows)
        gone = [title for title in ("time", "Cos", "FWT", "BWT") if title not in heading.split()]
        said = " ".join(text.split())
        assert (f"Left out, for want of room: {', '.join(gone)}." in said) if gone else "Left out" not in said
    assert told(table) == whole  # what was left out for one terminal is there for the next


def test_times_of_points_take_little_room() -> None:
    assert [rough_duration(s) for s in (41.44, 99.9, 100, 124, 5999)] == [
        "41.4 s",
        "99.9 s",
        "1.7 min",
        "2.1 min",
        "100.0 min",
    ]
    assert rough_duration(7200) == duration(7200) == "2.0 h"


def test_the_best_point_is_chosen_on_equal_seeds_only() -> None:
    def grid(*seeds: int) -> dict[str, str]:
        return best_points({f"ewc[a={v}]": made("ewc", point={"a": v}, seeds=v) for v in seeds})

    assert grid(2, 3) == {} and grid(2) == {}
    same = {f"ewc[a={v}]": made("ewc", point={"a": v}, seeds=2) for v in (1, 2)}
    assert set(best_points(same)) == {"ewc"}


@pytest.mark.parametrize("benchmark", ["r-cifar-100", "s-cifar-100"])
def test_our_own_results_fit(benchmark: str) -> None:
    (results,) = load_results(H200 / benchmark).values()
    methods, *grids = results_tables({name: r for name, r in results.items() if r.method != "random-init"})
    text = told(methods, *grids)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert told(methods).splitlines()[2].split()[-1] == "published"
    assert all("published" not in told(grid) for grid in grids)  # that is of the method as it is
    for name, r in results.items():
        if r.point:
            assert all(value in text for value in name.partition("[")[2].removesuffix("]").split(","))


def test_published_values_stand_beside_the_whole_protocol_only() -> None:
    (results,) = load_results(H200 / "r-cifar-100").values()
    ewc = results["ewc"]
    short = replace(ewc, config=ewc.config | {"tasks": 1})
    own = replace(ewc, config=ewc.config | {"benchmark": "of-a-file"})
    assert "69.18" in results_markdown({"r-cifar-100": {"ewc": ewc}})
    assert "69.18" not in results_markdown({"r-cifar-100": {"ewc": short}})
    assert "69.18" not in overview_markdown({"r-cifar-100": {"ewc": short}})
    assert "of-a-file" in told(*results_tables({"ewc": own}))


def test_the_overview_says_how_many_runs_stayed_finite() -> None:
    whole = made("ewc", seeds=2)
    fallen = [replace(run, accuracy=[], diverged=[1, 0]) for run in whole.runs]
    half, none = made("finetune", seeds=2), replace(whole, runs=fallen)
    half = replace(half, runs=[fallen[0], half.runs[1]])
    rows = overview_markdown({"digits": {"finetune": half, "ewc": none}}).splitlines()[2:]
    assert rows[0].endswith("**, n 1 of 2 |") and rows[1] == "| `ewc` | -, n 0 of 2 |"
    assert "**" not in overview_markdown({"digits": {"ewc": none}})  # nothing is best of what has no numbers


@pytest.mark.parametrize(
    ("setting", "value", "stands"),
    [("lambda_sp", 1.0, False), ("rate", 0.1, False), ("width", 2, False), ("precision", "float32", True)],
)
def test_published_values_stand_beside_published_settings_only(setting: str, value: Any, stands: bool) -> None:
    (results,) = load_results(H200 / "r-cifar-100").values()
    changed = configure("r-cifar-100", "ewc", overrides={setting: value}).as_dict()
    ewc = {"ewc": replace(results["ewc"], config=changed)}
    assert ("69.18" in told(*results_tables(ewc))) is stands
    assert ("69.18" in results_markdown({"r-cifar-100": ewc})) is stands


def test_runs_of_a_search_are_no_test_results() -> None:
    how = {"name": "short", "share": 0.2}
    points = {f"ewc[lambda_sp={v}]": made("ewc", point={"lambda_sp": v}, search=how) for v in (1, 2)}
    (table,) = results_tables(points)
    assert "digits (short search), ewc: 2 points" in told(table) and "held-out training data" in told(table)
    assert "no test results" in results_markdown({"digits (short search)": points})
    assert results_json(points, 1.0, "cpu")["methods"]["ewc[lambda_sp=1]"]["search"] == how
    assert "held-out" not in told(*results_tables({"ewc": made("ewc")}))
    (results,) = load_results(H200 / "r-cifar-100").values()
    searched = replace(results["ewc"], config=results["ewc"].config | {"search": how})
    assert "69.18" not in results_markdown({"r-cifar-100": {"ewc": searched}})


def test_how_many_runs_have_forward_transfer_is_told() -> None:
    some = {"ewc": made("ewc", seeds=3), "mas": made("mas", seeds=3)}
    assert "FWT here" not in told(*results_tables(some))
    some["mas"] = replace(some["mas"], alone={0: [88.0] * 4})
    text = " ".join(told(*results_tables(some)).split())
    assert "FWT here is of 1 of 3 runs (mas): the others have no random-init" in text
    assert ", n 1 | 3 |" in results_markdown({"digits": some})
    grid = {f"ewc[a={v}]": replace(made("ewc", point={"a": v}), alone={0: [88.0] * 4}) for v in range(9)}
    assert "FWT here is of 1 of 3 runs:" in " ".join(told(*results_tables(grid)).split())
    grid["ewc[a=1]"] = made("ewc", point={"a": 1})
    assert "(a=0, a=2, a=3, a=4, a=5, a=6 and 2 more)" in " ".join(told(*results_tables(grid)).split())
