"""The README and the pages with results say what the result files say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("index", "results", "scale", "speed"))]
)
def test_tables_are_those_of_the_result_files(page: str) -> None:
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "update_readme.py"))["rendered"]
    text = (ROOT / page).read_text()
    assert rendered(text) == text, "run `python benchmarks/update_readme.py`"
