"""Arguments of the kernels: the structures of the CUDA files as ctypes, and images by reference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Kernel(Protocol):
    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[Any]) -> None: ...


# (name, macros, bytes of shared memory) of each kernel -> the kernels
Build = Callable[[Sequence[tuple[str, dict[str, int], int]]], Sequence[Kernel]]


class Source(ctypes.Structure):
    """`Source` of convolution.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("index", ctypes.c_void_p),
        ("gain", ctypes.c_float * 3),
        ("shift", ctypes.c_float * 3),
    )


class Target(ctypes.Structure):
    """`Target` of convolve.cu."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("code", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("threshold", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("first_byte", ctypes.c_longlong),
    )


@dataclass(frozen=True)
class Pictures:
    """A batch of every run by reference: positions in pools of uint8 images (N, H, W, 4) on the device."""

    addresses: Tensor  # (R,) of the pools
    index: Tensor  # (R, B)
    gain: tuple[float, ...]  # pixels are normalized as gain * value + shift
    shift: tuple[float, ...]
    laid_out: Callable[[], Tensor] | None = None  # returns the batch as numbers (R, B, C, H, W)
