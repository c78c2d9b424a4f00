"""Matrix products on a CPU whose bits do not depend on where in memory their operands lie.

On CPUs that are not Intel's those of MKL do, and so a run's numbers on the runs beside it, unless it is told before
its first product. In float32, which runs are computed in, they then do not depend on the number of threads either;
in float64 they may.
"""

from __future__ import annotations

import os


def request_equal_bits(cpus: str | os.PathLike[str] = "/proc/cpuinfo") -> None:
    """Respects an existing MKL_CBWR. Imports nothing, since `import kenyon` begins with it."""
    try:
        with open(cpus) as file:  # noqa: PTH123
            vendor = next((line for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return
    if vendor and "GenuineIntel" not in vendor:
        os.environ.setdefault("MKL_CBWR", "AUTO")
