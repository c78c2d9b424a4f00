"""The functions that docs/theory.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

from kenyon.paper import theory

PAGE = (Path(__file__).parents[3] / "docs" / "theory.md").read_text()


def test_functions_of_the_table_exist() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 20
    assert named <= set(theory.__all__)
