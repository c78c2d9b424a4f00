"""SIGINT and SIGTERM at every moment of whole commands."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soundness
from tests.cli.test_signals import CODES, PATIENCE, RUN, SHORT, SHOWN, check, pytestmark, start

__all__ = ["pytestmark"]


@pytest.mark.torture
def test_at_every_moment(tmp_path: Path, record: dict[str, Any]) -> None:
    """Over a short run, a command that shows something, and one that does almost nothing."""
    counts = {"signals": 0, "ended_by_them": 0, "finished_before": 0}
    for words, moments in ((SHORT, 30), (SHOWN, 15), (RUN, 25)):
        place = [str(tmp_path / "whole")] if words == RUN else []
        began = time.monotonic()
        process = start(*words, *place)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        takes = time.monotonic() - began
        for moment in range(moments):
            for number in CODES:
                place = [str(tmp_path / f"{moment}-{number}")] if words == RUN else []
                code = check(number, 1.1 * takes * moment / moments, [*words, *place])
                counts["signals"] += 1
                counts["ended_by_them" if code else "finished_before"] += 1
    record["signals"] = {"what": "signals sent at moments swept over three commands", **counts}
    if os.environ.get("KENYON_TORTURE"):
        soundness.record("signals", "SIGINT and SIGTERM swept over whole commands", **counts)
