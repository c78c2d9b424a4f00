"""CPU matrix products whose bits do not depend on the memory address of their operands.

On CPUs of other vendors than Intel, MKL picks a code path by the alignment of the operands, so that the numbers of a
run depend on the runs that train with it, unless MKL_CBWR is set before the first product. With it, products in
float32, which runs are computed in, do not depend on the number of threads either; in float64 they may.
"""

from __future__ import annotations

import os


def request_equal_bits(cpus: str | os.PathLike[str] = "/proc/cpuinfo") -> None:
    """Set MKL_CBWR on CPUs that need it; respects an existing value. `import kenyon` calls this first, so it imports
    nothing.
    """
    try:
        with open(cpus) as file:  # noqa: PTH123
            vendor = next((line for line in file if line.startswith("vendor_id")), "")
    except OSError:
        return
    if vendor and "GenuineIntel" not in vendor:
        os.environ.setdefault("MKL_CBWR", "AUTO")
