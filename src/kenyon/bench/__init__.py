"""Speed of Kenyon on a device, compared with what the device could do and with plain PyTorch."""

from kenyon.bench.result import BenchResult
from kenyon.bench.runner import Extent, extents, new_result, run_bench

__all__ = ["BenchResult", "Extent", "extents", "new_result", "run_bench"]
