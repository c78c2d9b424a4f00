"""Differences between measured and published accuracies by hand, and the sentence on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kenyon.benchmarks.registry import find_benchmark
from kenyon.experiments.config import configure
from kenyon.experiments.results import Result
from kenyon.report.formats import differences, published_sentence, published_view
from kenyon.utils.views import checked
from tests.report.made import made


def at(benchmark: str, method: str, above: float) -> Result:
    """Make a result of two runs whose mean is the given number of points above the published value."""
    value = find_benchmark(benchmark).published[method] + above
    whole = made(method, benchmark, seeds=2, tasks=2)
    runs = [
        replace(run, accuracy=[[99.0, 0.0], [value + off, value - off / 2]])
        for run, off in zip(whole.runs, (4.0, -4.0), strict=True)
    ]
    return replace(whole, runs=runs, config=configure(benchmark, method).as_dict())


RESULTS = {
    "cub-200": {"ewc": at("cub-200", "ewc", 0.25), "pnc": at("cub-200", "pnc", -3.375)},
    "s-cifar-100": {"caf-ewc": at("s-cifar-100", "caf-ewc", -1.25), "ewc": at("s-cifar-100", "ewc", -1.75)},
}


def test_differences_are_of_means_over_runs_and_tasks() -> None:
    found = differences(RESULTS)
    expected = {("cub-200", "ewc"): 0.25, ("cub-200", "pnc"): -3.375, ("s-cifar-100", "caf-ewc"): -1.25}
    assert found == pytest.approx({**expected, ("s-cifar-100", "ewc"): -1.75})


def test_what_cannot_be_compared_is_left_out() -> None:
    ewc = at("cub-200", "ewc", 1.0)
    others = {
        "unpublished": made("mcl-ewc", "cub-200"),
        "grid": replace(ewc, point={"lambda_sp": 7}),
        "none complete": replace(ewc, runs=[replace(run, accuracy=[], diverged=[0, 0]) for run in ewc.runs]),
        "changed": replace(ewc, config=configure("cub-200", "ewc", overrides={"lambda_sp": 7.0}).as_dict()),
    }
    assert differences({"cub-200": others, "digits": {"ewc": made()}}) == {}
    assert published_sentence({"digits": {"ewc": made()}}) == ""


def test_the_sentence_counts_and_names_what_is_far_below() -> None:
    assert published_sentence(RESULTS) == (
        "Of 4 published numbers, reached or passed: 1; missed by at most 1.5 points: 1; by more: 2 "
        "(pnc on cub-200 by 3.4, ewc on s-cifar-100 by 1.8)."
    )
    assert published_sentence({"cub-200": {"ewc": at("cub-200", "ewc", 0.25)}}).endswith("by more: 0.")


def test_the_chart_has_methods_by_benchmarks_in_their_usual_order() -> None:
    view = checked(published_view(RESULTS))
    assert view["columns"] == ["s-cifar-100", "cub-200"] and view["rows"] == ["ewc", "pnc", "caf-ewc"]
    flat = [round(value, 6) if value is not None else None for row in view["data"] for value in row]
    assert flat == [-1.75, 0.25, None, -3.375, -1.25, None]
