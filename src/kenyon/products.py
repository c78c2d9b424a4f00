"""Matrix products on a CPU whose bits do not depend on where in memory their operands lie.

On CPUs that are not Intel's those of MKL do, and so a run's numbers on the runs beside it, unless it is told before
its first product. In float32, which runs are computed in, they then do not depend on the number of threads either;
in float64 they may.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def ask_for_equal_bits(cpus: Path = Path("/proc/cpuinfo")) -> None:
    """Whoever has set MKL_CBWR has chosen."""
    with contextlib.suppress(OSError), cpus.open() as file:
        vendor = next((line for line in file if line.startswith("vendor_id")), "")
        if vendor and "GenuineIntel" not in vendor:
            os.environ.setdefault("MKL_CBWR", "AUTO")
