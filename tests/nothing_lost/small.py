"""The small experiment that things happen to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FORMAT_1 = Path(__file__).parents[1] / "experiments" / "format-1"  # results and a state of the first version
GIVEN: dict[str, Any] = {"epochs": 3, "batch": 64}


def the_state(out: Path) -> Path:
    (path,) = (path for path in out.rglob("state-*.safetensors") if "-before" not in path.name)
    return path
