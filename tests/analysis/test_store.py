"""Analyses on disk: with their origin, measured once, and drawn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kenyon.analysis import ANALYSES, FlatnessSettings, analyse, compare
from kenyon.analysis import plot as plots
from kenyon.analysis.store import Entry, config_digest
from kenyon.errors import ConfigError, ResultsError
from kenyon.experiments.config import configure
from kenyon.experiments.results import Result
from kenyon.report.plots import draw_plot
from kenyon.streams import Source, find_source
from tests.analysis.test_model import without_origin

QUICK = {"flatness": FlatnessSettings(directions=1, steps=3, samples=8)}


@pytest.fixture
def out(results: Path, tmp_path: Path) -> Path:
    shutil.copytree(results, tmp_path / "results")
    return tmp_path / "results" / "digits"


def digits() -> Source:
    return find_source("digits").load(None)


def measured(name: str, folder: Path, settings: Any = None, seeds: tuple[int, ...] = (0, 1)) -> Entry:
    result = Result.load(folder / "result.json").restricted(seeds)
    how = settings or QUICK.get(name, ANALYSES[name].settings)
    return analyse(ANALYSES[name], how, folder, result, digits, torch.device("cpu"))


@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "gradcam"])
def test_numbers_are_written_with_their_origin(name: str, out: Path) -> None:
    entry = measured(name, out / "caf-ewc")
    body = json.loads((out / "caf-ewc" / "analysis" / f"{name}.json").read_text())
    assert entry.path.name == f"{name}.json" and entry.measured == 2
    assert [run["seed"] for run in body["runs"]] == [0, 1] == body["origins"][0]["seeds"]
    assert body["origins"][0]["device"] == "cpu" and body["origins"][0]["versions"]["torch"] == torch.__version__
    assert body["origins"][0]["seconds"] >= 0 and len(body["configuration"]) == 16
    assert set(body["summary"]) == set(ANALYSES[name].scalars)
    assert body["plot"]["kind"] in ("lines", "heatmap", "scatter") and "caf-ewc" in body["plot"]["title"]
    for scalar in ANALYSES[name].scalars:
        values = [run[scalar] for run in body["runs"]]
        assert body["summary"][scalar]["mean"] == pytest.approx(np.mean(values), rel=1e-4)


def test_what_is_there_is_not_measured_again(out: Path) -> None:
    folder = out / "ewc"
    assert measured("flatness", folder, seeds=(0,)).measured == 1
    first = (folder / "analysis" / "flatness.json").read_bytes()
    assert measured("flatness", folder, seeds=(0,)).measured == 0
    assert (folder / "analysis" / "flatness.json").read_bytes() == first
    assert measured("flatness", folder).measured == 1  # the seed that is new
    body = json.loads((folder / "analysis" / "flatness.json").read_text())
    assert [origin["seeds"] for origin in body["origins"]] == [[0], [1]]
    # Other settings, and other weights, are another thing.
    assert measured("flatness", folder, replace(QUICK["flatness"], seed=3)).measured == 2
    assert measured("flatness", folder, replace(QUICK["flatness"], seed=3)).measured == 0
    without_origin(folder / "weights-1.safetensors")
    assert measured("flatness", folder, replace(QUICK["flatness"], seed=3)).measured == 1
    (folder / "analysis" / "flatness.json").write_text("{")
    assert measured("flatness", folder).measured == 2


def test_change_is_measured_again_when_more_weights_are_there(out: Path) -> None:
    path = out / "ewc" / "weights-0-after-1.safetensors"
    path.rename(out / "kept")
    entry = measured("change", out / "ewc", seeds=(0,))
    assert entry.runs[0]["total"] is None and "displacement" in entry.plot["x"]
    (out / "kept").rename(path)
    entry = measured("change", out / "ewc", seeds=(0,))
    assert entry.measured == 1 and entry.runs[0]["total"] > entry.runs[0]["displacement"]
    assert "total" in entry.plot["x"]


@pytest.mark.parametrize("name", ["pertask", "diversity", "discrepancy", "flatness", "change"])
def test_results_side_by_side(name: str, out: Path) -> None:
    methods = ("caf-ewc", "icl-ewc") if name == "diversity" else ("ewc", "caf-ewc")
    entries = {method: measured(name, out / method) for method in methods}
    found = compare(ANALYSES[name], "digits", entries, out / "analysis")
    assert found is not None
    path, plot = found
    body = json.loads(path.read_text())
    assert body["plot"] == plot and body["of"][methods[1]] == f"{methods[1]}/analysis/{name}.json"
    names = plot["categories"] if plot["kind"] == "bars" else [series["name"] for series in plot["series"]]
    assert names == list(methods)
    assert compare(ANALYSES[name], "digits", {"ewc": entries[methods[1]]}, out / "analysis") is None


def test_digests_know_values_not_how_they_are_written() -> None:
    one, same, other = (
        config_digest(configure("digits", "ewc", overrides={"lambda_sp": v}).as_dict()) for v in (1000, 1000.0, 1001)
    )
    assert one == same != other


def test_a_result_without_finished_runs(out: Path) -> None:
    with pytest.raises(ResultsError, match="nothing to analyse"):
        measured("flatness", out / "ewc", seeds=())


def test_every_kind_is_drawn(tmp_path: Path) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    values = np.array([[1.0, np.nan], [0.5, -2.0]])
    every = [
        plots.lines(
            "a",
            "x",
            "y",
            [plots.line("s", [1, 2], values[1], values[1] * 0), plots.line("t", [1], values[1][:1], thin=True)],
        ),
        plots.scatter("a", "x", "y", [{"name": "s", "x": [1.0, None], "y": [2.0, 3.0]}]),
        plots.heatmap("a", "x", "y", ["1", "2"], ["1", "2"], values, unit="u", centre=0.0),
        plots.heatmap("a", "x", "y", ["1", "2"], ["1", "2"], values, unit="u"),
        plots.bars("a", "y", ["ewc", "mas"], [plots.bar("s", [[1.0, 2.0], [3.0]]), plots.bar("t", [[1.0], [2.0]])]),
        plots.images("a", ["1"], ["r", "s"], [[dot], [dot]], "note"),
        plots.table("a", ["n", "v"], [["x", 1.23456], ["y", None]]),
    ]
    for number, plot in enumerate(every):
        path = draw_plot(json.loads(json.dumps(plot)), tmp_path / f"{number}.png")
        assert path.is_file() and path.with_suffix(".svg").is_file()
    with pytest.raises(ConfigError, match="cube"):
        draw_plot({"kind": "cube", "title": ""}, tmp_path / "no.png")


def test_numbers_for_json() -> None:
    assert plots.numbers({"a": np.array([1.23456789, np.nan]), "b": (np.inf, 2)}) == {
        "a": [1.23457, None],
        "b": [None, 2],
    }


def test_bars_have_mean_error_and_points() -> None:
    # 1 and 3: mean 2, deviation sqrt 2, error 1.
    assert plots.bar("s", [[1.0, 3.0], [5.0]]) == {
        "name": "s",
        "values": [2.0, 5.0],
        "error": [1.0, None],
        "points": [[1.0, 3.0], [5.0]],
    }
