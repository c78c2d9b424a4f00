from __future__ import annotations

import pytest

from kenyon import losses, passes
from kenyon.nets.cuda import heads, rows, units
from tests.interpreter import INTERPRETED


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that ask for a GPU are taken in the interpreter too."""
    if INTERPRETED:
        for module in (losses, passes, heads, rows, units):
            monkeypatch.setattr(module, "available", lambda x: True)
