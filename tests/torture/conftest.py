"""What the long runs did, kept as a small JSON where KENYON_TORTURE says: `make torture` does."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kenyon.version import __version__


@pytest.fixture(scope="session")
def record() -> Iterator[dict[str, Any]]:
    """Every long test adds what it did; written when all are over."""
    done: dict[str, Any] = {}
    yield done
    if (path := os.environ.get("KENYON_TORTURE")) and done:
        versions = {"kenyon": __version__, "torch": torch.__version__, "python": platform.python_version()}
        when = datetime.datetime.now(datetime.UTC).date().isoformat()
        body = {"format": 1, "date": when, "versions": versions, **dict(sorted(done.items()))}
        Path(path).write_text(json.dumps(body, indent=1) + "\n")
