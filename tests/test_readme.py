"""The README and the pages with results say what the result files say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/results.md", "docs/scale.md"])
def test_tables_are_those_of_the_result_files(page: str) -> None:
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "update_readme.py"))["rendered"]
    text = (ROOT / page).read_text()
    assert rendered(text) == text, "run `python benchmarks/update_readme.py`"
