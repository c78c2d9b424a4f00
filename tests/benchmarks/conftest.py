from __future__ import annotations

from tests.data.conftest import decoded

__all__ = ["decoded"]
