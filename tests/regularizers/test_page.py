"""The code of docs/inside-other-tools.md runs, block after block."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "inside-other-tools.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
EXTRAS = ("lightning", "transformers", "avalanche")


def needs(block: str) -> list[str]:
    return [extra for extra in EXTRAS if f"from {extra}" in block]


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What the blocks before have defined."""
    return {}


@pytest.mark.filterwarnings("ignore")  # of these programs
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run(number: int, said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "tasks" not in said:
        exec(BLOCKS[0], said)
    for extra in needs(BLOCKS[number]):
        if importlib.util.find_spec(extra) is None:
            pytest.skip(f"{extra} is not installed")
    exec(BLOCKS[number], said)


@pytest.mark.parametrize("method", ["finetune", "si", "ewc", "caf-ewc"])
def test_the_example_runs(method: str) -> None:
    example = runpy.run_path(str(PAGE.parents[1] / "examples" / "own_loop.py"))
    example["run"].__globals__["EPOCHS"] = 2
    assert 50 < example["run"](method, 0) <= 100


def test_the_page_shows_all_programs() -> None:
    assert sorted(extra for block in BLOCKS for extra in needs(block)) == sorted(EXTRAS)
