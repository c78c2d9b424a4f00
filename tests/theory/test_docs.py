"""docs/theory.md says what is so: its code runs, its functions and pictures exist."""

from __future__ import annotations

import re
from pathlib import Path

from kenyon import theory

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "theory.md").read_text()


def test_code_blocks_run_in_turn() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        exec(compile(code, "theory.md", "exec"), names)


def test_functions_of_the_table_exist() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 20
    assert named <= set(theory.__all__)


def test_pictures_and_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / target).exists(), target
