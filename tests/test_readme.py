"""The README and the page of results say what the result files say, and the README's Python at least compiles."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/scale.md"])
def test_tables_are_those_of_the_result_files(page: str) -> None:
    rendered = runpy.run_path(str(ROOT / "benchmarks" / "update_readme.py"))["rendered"]
    text = (ROOT / page).read_text()
    assert rendered(text) == text, "run `python benchmarks/update_readme.py`"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_compile(code: str) -> None:
    compile(code, "README.md", "exec")


def test_pictures_and_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
