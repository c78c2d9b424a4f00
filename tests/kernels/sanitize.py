"""Launch every kernel at a few awkward sizes, for NVIDIA's compute-sanitizer to watch:

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.kernels.sanitize
    python -m tests.kernels.sanitize --record [PROGRAM]   # the same, counted in benchmarks/soundness.json

PyTorch keeps no memory then (PYTORCH_NO_CUDA_MEMORY_CACHING), and tensors have no guard zones: each is an allocation
of its own, so that an access behind its end is seen. Results are held against their references too. It ends with an
error where a kernel of the inventory was not launched.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before PyTorch looks at it
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch

from benchmarks import soundness
from kenyon.backends.cuda import compiler
from tests.kernels import guards, test_convolve, test_maps, test_rows, test_vectors
from tests.kernels.inventory import KERNELS, SOURCE, Kernel

Launched = set[tuple[str, str]]


@contextmanager
def recorded() -> Iterator[Launched]:
    """The kernels launched meanwhile, (file, name)."""
    from triton.runtime.jit import JITFunction

    launched: Launched = set()
    run, launch, begin = JITFunction.run, compiler.Kernel.launch, compiler.Kernel.__init__
    names: dict[int, str] = {}

    def running(self: Any, *args: Any, **kwargs: Any) -> Any:
        file = Path(self.fn.__code__.co_filename)
        if file.is_relative_to(SOURCE):
            launched.add((file.relative_to(SOURCE).as_posix(), self.fn.__name__))
        return run(self, *args, **kwargs)

    def named(self: Any, code: bytes, name: str, shared_bytes: int) -> None:
        names[id(self)] = name
        begin(self, code, name, shared_bytes)

    def launching(self: Any, *args: Any) -> None:
        name = names[id(self)]
        launched.add((f"backends/cuda/{name}.cu", name))
        launch(self, *args)

    JITFunction.run, compiler.Kernel.launch, compiler.Kernel.__init__ = running, launching, named  # type: ignore[method-assign]
    try:
        yield launched
    finally:
        JITFunction.run, compiler.Kernel.launch, compiler.Kernel.__init__ = run, launch, begin  # type: ignore[method-assign]


def expected() -> list[Kernel]:
    """The kernels that this GPU has."""
    device = torch.device("cuda")
    if not compiler.available(device):
        return [kernel for kernel in KERNELS if not kernel.file.endswith(".cu")]
    return [kernel for kernel in KERNELS if kernel.name != "convolve_dense" or compiler.has_teams(device)]


def run() -> Launched:
    with recorded() as launched:
        for module in (test_rows, test_vectors, test_maps, test_convolve):
            module.samples()
        torch.cuda.synchronize()
    return launched


def main() -> int:
    guards.ZONE = 0
    launched, missing = run(), 0
    for kernel in expected():
        ran = (kernel.file, kernel.name) in launched
        missing += not ran
        print(f"{'ran' if ran else 'NOT RUN':8}{kernel.file:32}{kernel.name}")
    print(f"{len(expected()) - missing} of {len(KERNELS)} kernels ran on {torch.cuda.get_device_name()}.")
    return 1 if missing else 0


def watched(program: str, record: Path = soundness.RECORD) -> int:
    """Run this file under compute-sanitizer, and record its output."""
    command = [program, "--tool", "memcheck", "--error-exitcode", "1", sys.executable, "-m", "tests.kernels.sanitize"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    errors = re.search(r"ERROR SUMMARY: (\d+) error", done.stdout)
    ran = re.search(r"(\d+) of \d+ kernels ran", done.stdout)
    if errors is None or ran is None:
        return done.returncode or 1
    counts = {"kernels": int(ran[1]), "errors": int(errors[1])}
    soundness.record("memcheck", "every kernel at awkward sizes under compute-sanitizer memcheck", record, **counts)
    return done.returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        sys.exit(watched((sys.argv[2:] or ["compute-sanitizer"])[0]))
    sys.exit(main())
