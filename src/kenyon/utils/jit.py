"""The decorator of Triton kernels, for modules that must import without Triton."""

from __future__ import annotations

from typing import Any

try:
    import triton
except ImportError:
    triton = None


def jit(kernel: Any) -> Any:
    """Compile a kernel with Triton; without Triton, return the function, which is never called."""
    return kernel if triton is None else triton.jit(kernel)
