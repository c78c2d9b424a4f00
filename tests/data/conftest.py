from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def decoded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of decoded replicas. Real files use the folder of any user, who then has them cached."""
    folder = tmp_path / "cache" / "decoded"
    if request.node.get_closest_marker("realdata") is None:
        monkeypatch.setattr("kenyon.datasets.cache.decoded_folder", lambda: folder)
    return folder
