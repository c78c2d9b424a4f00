"""Kernels in tests: on a GPU as compiled, elsewhere in Triton's interpreter.

Triton decides when it is imported whether it interprets. So tests marked `kernels` are skipped without a GPU, and run
in a process of their own that a test of the same file starts (`interpreted`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS_KERNELS = DEVICE == "cuda" or INTERPRETED


def interpreted(file: str) -> None:
    """Run the kernels' tests of a file in the interpreter."""
    if RUNS_KERNELS:
        pytest.skip("the tests of kernels run as they are")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    command = [sys.executable, "-m", "pytest", file, "-q", "-m", "kernels", "-n", "0", "-p", "no:benchmark"]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
