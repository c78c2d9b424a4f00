"""Saved analyses: their origin, one measurement per run, and charts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kenyon.data import Source, find_source
from kenyon.errors import ResultsError
from kenyon.experiments.config import configure
from kenyon.experiments.results import Result
from kenyon.experiments.store import config_digest
from kenyon.paper.analyses import ANALYSES, FlatnessSettings, analyse, compare
from kenyon.paper.analyses.analysis import Entry
from tests.paper.analyses.test_model import without_origin
from tests.unsealed import unsealed

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
    assert body["view"]["kind"] in ("lines", "heatmap", "scatter") and "caf-ewc" in body["view"]["title"]
    for scalar in ANALYSES[name].scalars:
        values = [run[scalar] for run in body["runs"]]
        assert body["summary"][scalar]["mean"] == pytest.approx(np.mean(values), rel=1e-4)


def test_runs_of_several_fleets_keep_the_origin_of_each(out: Path) -> None:
    """An analysis of saved numbers, without weights, has the time and the device of these numbers."""
    folder, analysis = out / "ewc", ANALYSES["pertask"]
    result = Result.load(folder / "result.json").restricted((0, 1))
    here = result.fleets[0]
    fleets = [replace(here, seeds=[0]), replace(here, seeds=[1], device="another")]
    entry = analyse(analysis, analysis.settings, folder, replace(result, fleets=fleets), digits, torch.device("cpu"))
    origins = json.loads(entry.path.read_text())["origins"]
    assert [(origin["seeds"], origin["device"]) for origin in origins] == [([0], here.device), ([1], "another")]


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


def test_a_value_that_an_older_version_left_out(out: Path) -> None:
    folder = out / "caf-ewc"
    first = measured("discrepancy", folder).runs
    path = folder / "analysis" / "discrepancy.json"
    body = unsealed(path)
    for run in body["runs"]:
        del run["own_error"]
    path.write_text(json.dumps(body))
    assert measured("discrepancy", folder).runs == measured("discrepancy", folder).runs
    assert [run["own_error"] for run in measured("discrepancy", folder).runs] == [run["own_error"] for run in first]
    path.write_text(json.dumps(body))
    for weights in folder.glob("weights-*.safetensors"):
        weights.unlink()
    assert all("own_error" not in run for run in measured("discrepancy", folder).runs)  # it stays out


def test_what_was_measured_outlives_the_weights(out: Path) -> None:
    folder = out / "ewc"
    before = measured("flatness", folder).runs
    for path in folder.glob("weights-*.safetensors"):
        path.unlink()
    again = measured("flatness", folder)
    assert again.measured == 0 and again.runs == before
    with pytest.raises(ResultsError, match="weights of seed 0 were not kept"):
        measured("flatness", folder, replace(QUICK["flatness"], seed=3))
    result = Result.load(folder / "result.json")
    runs = [replace(run, accuracy=[[a / 2 for a in row] for row in run.accuracy]) for run in result.runs]
    other = replace(result, runs=runs)  # other numbers: another run, of which nothing is known
    with pytest.raises(ResultsError, match="were not kept"):
        analyse(ANALYSES["flatness"], QUICK["flatness"], folder, other, digits, torch.device("cpu"))


def test_change_is_measured_again_when_more_weights_are_there(out: Path) -> None:
    path = out / "ewc" / "weights-0-after-1.safetensors"
    path.rename(out / "kept")
    entry = measured("change", out / "ewc", seeds=(0,))
    assert entry.runs[0]["total"] is None and "displacement" in entry.view["x"]
    (out / "kept").rename(path)
    entry = measured("change", out / "ewc", seeds=(0,))
    assert entry.measured == 1 and entry.runs[0]["total"] > entry.runs[0]["displacement"]
    assert "total" in entry.view["x"]


@pytest.mark.parametrize("name", ["pertask", "diversity", "discrepancy", "flatness", "change"])
def test_results_side_by_side(name: str, out: Path) -> None:
    methods = ("caf-ewc", "icl-ewc") if name == "diversity" else ("ewc", "caf-ewc")
    entries = {method: measured(name, out / method) for method in methods}
    found = compare(ANALYSES[name], "digits", entries, out / "analysis")
    assert found is not None
    path, view = found
    body = json.loads(path.read_text())
    assert body["view"] == view and body["of"][methods[1]] == f"{methods[1]}/analysis/{name}.json"
    names = [one["name"].partition(",")[0] for one in view["data"]]
    assert list(dict.fromkeys(names)) == list(methods)
    assert compare(ANALYSES[name], "digits", {"ewc": entries[methods[1]]}, out / "analysis") is None


def test_digests_know_values_not_how_they_are_written() -> None:
    one, same, other = (
        config_digest(configure("digits", "ewc", overrides={"lambda_sp": v}).as_dict()) for v in (1000, 1000.0, 1001)
    )
    assert one == same != other


def test_a_result_without_finished_runs(out: Path) -> None:
    with pytest.raises(ResultsError, match="no complete run to analyse"):
        measured("flatness", out / "ewc", seeds=())
