"""How fast Kenyon is on a device, against what the device could do and against plain code."""

from kenyon.bench.plan import Extent, extents
from kenyon.bench.result import BenchResult
from kenyon.bench.runner import new_result, run_bench

__all__ = ["BenchResult", "Extent", "extents", "new_result", "run_bench"]
