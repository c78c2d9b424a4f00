"""Whole commands within every amount of memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soundness
from tests.cli.test_memory import COMMANDS, RUN, check, pytestmark

__all__ = ["pytestmark"]
MEGABYTES = (45, 60, 100, 150, 250, 400, 550, 620, 660, 700, 740, 780, 820, 860, 900, 1000, 1300, 2000)


@pytest.mark.torture
def test_every_amount(tmp_path: Path, record: dict[str, Any]) -> None:
    counts = {"commands": 0, "done": 0, "refused_in_words": 0}
    for megabytes in MEGABYTES:
        for words in (*COMMANDS, [*RUN, str(tmp_path / str(megabytes))]):
            code = check(megabytes, words)
            counts["commands"] += 1
            counts["refused_in_words" if code else "done"] += 1
    record["memory"] = {"what": "commands within a limited address space", **counts}
    if os.environ.get("KENYON_TORTURE"):
        soundness.record("memory", "commands within 45 MB to 2 GB of address space: no traceback", **counts)
