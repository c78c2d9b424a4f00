"""The README and the pages with results say what the result files say."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from kenyon.data import Source
from kenyon.experiments.results import Result
from kenyon.paper.analyses import ANALYSES, analyse

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("games", "index", "results", "running", "scale", "speed"))]
)
def test_tables_are_those_of_the_result_files(page: str) -> None:
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "update_readme.py"))["rendered"]
    text = (ROOT / page).read_text()
    assert rendered(text) == text, "run `python benchmarks/update_readme.py`"


def test_claims_are_those_of_the_figures() -> None:
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "reproduction.py"))["rendered"]
    text = (ROOT / "docs" / "reproduction.md").read_text()
    assert rendered(text) == text, "run `python benchmarks/reproduction.py`"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "reproduction").glob("*.json")), ids=lambda p: p.stem)
def test_figures_are_of_runs_that_are_kept(path: Path) -> None:
    body = json.loads(path.read_text())
    kept = [ROOT / "benchmarks" / folder for folder in ("h200", "h200-fig4")]
    for variants in body["origin"]["runs"].values():
        for origin in variants.values():
            found = next(folder / origin["result"] for folder in kept if (folder / origin["result"]).exists())
            assert {run["seed"] for run in json.loads(found.read_text())["runs"]} >= set(origin["seeds"])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks").glob("*/*/*/analysis/*.json")), ids=lambda p: "-".join(p.parts[-5:])
)
def test_analyses_that_are_kept_are_known_again(path: Path, tmp_path: Path) -> None:
    """Their weights are gone: whatever a later version adds to settings, what they have measured has to count."""

    def no_data() -> Source:
        raise AssertionError("nothing is left to measure")

    body, folder = json.loads(path.read_text()), path.parents[1]
    analysis = ANALYSES[body["analysis"]]
    settings = type(analysis.settings)(**body["settings"])
    result = Result.load(folder / "result.json").restricted([run["seed"] for run in body["runs"]])
    (tmp_path / "analysis").mkdir()
    shutil.copy(path, tmp_path / "analysis")
    entry = analyse(analysis, settings, folder, result, no_data, torch.device("cpu"), into=tmp_path)
    assert entry.measured == 0 and entry.runs == body["runs"]
