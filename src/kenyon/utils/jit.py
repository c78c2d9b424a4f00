"""Functions that Triton compiles for a GPU, in modules that can be imported without it."""

from __future__ import annotations

from typing import Any

try:
    import triton
except ImportError:
    triton = None


def jit(kernel: Any) -> Any:
    """A kernel as Triton launches it; where Triton is absent, nobody asks for it."""
    return kernel if triton is None else triton.jit(kernel)
