"""Files as versions without checksums wrote them, for tests that change what a file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def unsealed(path: Path) -> dict[str, Any]:
    """What a JSON file says, without its checksum and what belongs to it."""
    body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: value for name, value in body.items() if name not in ("checksum", "weights", "unsealed")}


def write_unsealed(path: Path) -> None:
    """Write a JSON file as an earlier version had it."""
    path.write_text(json.dumps(unsealed(path)))
