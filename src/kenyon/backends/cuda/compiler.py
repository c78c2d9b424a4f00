"""CUDA C++ compiled at run time: NVRTC and the driver through their C interfaces.

PyTorch's CUDA builds include NVRTC, so nothing has to be installed. Machine code is stored in the user's cache folder
under a digest of source, options and architecture, so that a network is compiled once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from kenyon.backends.cuda.plan import SHARED_MEMORY
from kenyon.utils.files import cores

FOLDER = Path(__file__).parent
STANDARD = ("--std=c++17", "-default-device", "-diag-suppress=177")
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(Exception):
    """An error of NVRTC or of the driver."""


class Kernel:
    """A compiled kernel, launched on PyTorch's current stream."""

    def __init__(self, code: bytes, name: str, shared_bytes: int) -> None:
        self.shared_bytes = shared_bytes
        torch.cuda.current_stream()  # creates the driver's context
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _driver("cuModuleLoadData", ctypes.byref(module), code)
        _driver("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
        _driver("cuFuncSetAttribute", self._function, _SHARED_BYTES, shared_bytes)

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None:
        """`arguments` are ctypes values in the order of the kernel's parameters."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _driver("cuLaunchKernel", self._function, *grid, threads, 1, 1, self.shared_bytes, stream, pointers, None)


@functools.cache
def available(device: torch.device) -> bool:
    """Return True if the device has Hopper's shared memory, and NVRTC is installed."""
    properties = torch.cuda.get_device_properties(device)
    if properties.major < 9 or getattr(properties, "shared_memory_per_block_optin", 0) < SHARED_MEMORY:
        return False
    try:
        _nvrtc(), _libcuda()
    except (CompileError, OSError):
        return False
    return True


def has_teams(device: torch.device) -> bool:
    """Return True if the device has products of four warps, which only Hopper has."""
    return torch.cuda.get_device_capability(device)[0] == 9


def source_of(name: str) -> str:
    """Return the source of a kernel: the common files, then its own."""
    files = ("convolution", name) if name == "weigh" else ("convolution", "results", name)
    return "".join((FOLDER / f"{file}.cu").read_text() for file in files)


def build(requests: Sequence[tuple[str, Mapping[str, int], int]]) -> list[Kernel]:
    """Return kernels by (name, macros, bytes of shared memory); those not in the cache are compiled in parallel."""
    with ThreadPoolExecutor(max_workers=min(16, cores())) as pool:
        codes = list(pool.map(lambda request: machine_code(request[0], request[1]), requests))
    return [Kernel(code, name, shared) for code, (name, _, shared) in zip(codes, requests, strict=True)]


def machine_code(name: str, macros: Mapping[str, int]) -> bytes:
    major, minor = torch.cuda.get_device_capability()
    special = "a" if major == 9 else ""  # includes instructions that only Hopper has
    options = [
        *STANDARD,
        f"--gpu-architecture=sm_{major}{minor}{special}",
        *(f"-D{m}={v}" for m, v in macros.items()),
    ]
    source = source_of(name)
    digest = hashlib.sha256("\0".join([source, *options, str(torch.version.cuda)]).encode()).hexdigest()
    cached = _cache() / f"{name}-{digest[:32]}.cubin"
    try:
        return cached.read_bytes()
    except OSError:
        pass
    code = _compile(source, name, options)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cached.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(cached)
    except OSError:
        pass  # without a cache, the next process compiles again, for some seconds
    return code


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kenyon"


def _compile(source: str, name: str, options: Sequence[str]) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()

    def call(function: str, *arguments: Any) -> int:
        return int(getattr(nvrtc, function)(*arguments))

    if call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None):
        raise CompileError("NVRTC cannot create a program.")
    try:
        words = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        if call("nvrtcCompileProgram", program, len(options), words):
            raise CompileError(_text(nvrtc, "nvrtcGetProgramLog", program))
        size = ctypes.c_size_t()
        call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        if call("nvrtcGetCUBIN", program, code):
            raise CompileError("NVRTC returned no machine code.")
        return code.raw
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))


def _text(library: ctypes.CDLL, function: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    getattr(library, function + "Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, function)(program, text)
    return text.value.decode(errors="replace")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    names = [f"nvrtc64_{major}0_0.dll"] if os.name == "nt" else [f"libnvrtc.so.{major}", "libnvrtc.so"]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError(f"NVRTC ({names[0]}) is not installed.")


def _driver(function: str, *arguments: Any) -> None:
    status = int(getattr(_libcuda(), function)(*arguments))
    if status:
        text = ctypes.c_char_p()
        _libcuda().cuGetErrorString(status, ctypes.byref(text))
        raise CompileError(f"{function}: {(text.value or b'unknown error').decode()}")


@functools.cache
def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
