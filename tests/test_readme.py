"""The README and the pages with results say what the result files say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("games", "index", "results", "scale", "speed"))]
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
