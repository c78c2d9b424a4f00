"""Builds the CUDA kernels for the emulated GPU of emulator.hpp, so that they can be tested on any machine."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kenyon.backends.cuda.compiler import source_of

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")

_CONVOLVE = (
    "*(Source*)p[0], *(const bf16**)p[1], *(i64*)p[2], *(const float**)p[3], *(i64*)p[4], *(Target*)p[5], *(int*)p[6]"
)
_ARGUMENTS = {
    "convolve": _CONVOLVE,
    "convolve_dense": _CONVOLVE,
    "weigh": "*(Source*)p[0], *(Source*)p[1], *(float**)p[2], *(float**)p[3], *(int*)p[4], *(int*)p[5]",
}


class EmulatedKernel:
    def __init__(self, name: str, macros: Mapping[str, int], shared_bytes: int) -> None:
        self._launch, self.shared_bytes = _library(name, tuple(macros.items())).launch, shared_bytes

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self._launch((ctypes.c_int * 3)(*grid), threads, self.shared_bytes, pointers)


def build(wanted: Sequence[tuple[str, Mapping[str, int], int]]) -> list[EmulatedKernel]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda want: EmulatedKernel(*want), wanted))


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kenyon-emulated-"))


@functools.cache
def _library(name: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    assert COMPILER is not None
    launch = (
        'extern "C" void launch(const int* grid, int threads, int shared_bytes, void** p) '
        f"{{ emulator::run_grid(grid, threads, shared_bytes, [=] {{ {name}({_ARGUMENTS[name]}); }}); }}"
    )
    source = f'#include "{HERE / "emulator.hpp"}"\n{source_of(name)}\n{launch}\n'
    flags = [f"-D{macro}={value}" for macro, value in macros]
    place = _folder() / hashlib.sha256(" ".join([name, *flags]).encode()).hexdigest()[:16]
    place.with_suffix(".cpp").write_text(source)
    library = place.with_suffix(".so")
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", "-w", *flags, "-o", str(library)]
    subprocess.run([*command, str(place.with_suffix(".cpp"))], check=True)
    return ctypes.CDLL(str(library))
