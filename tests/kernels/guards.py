"""Memory with guard zones, in which a kernel that writes outside of its tensors, or forgets to write, is seen.

Inside `Guarded()` every tensor that is made without values (torch.empty and its kin, as outputs of kernels are) lies
in a larger buffer of NaN, or of an improbable byte: what a kernel forgets shows as NaN, what it writes before or
behind a tensor shows at the end of the block. `place` lays an operand into such a buffer, at any offset: a tensor
with memory of its own begins at a multiple of 512 bytes on a GPU, and a view of a row anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.interpreter import DEVICE

ZONE = 1024  # bytes before and behind a tensor; 0 leaves it to a tool that watches allocations to see who leaves it
_ATEN = torch.ops.aten
_WITHOUT_VALUES = {_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided}


def poison(dtype: torch.dtype) -> int:
    """The byte that memory is full of. Of 0xFF alone, floating-point numbers are NaN."""
    return 0xA5 if dtype is torch.uint8 else 0xFF


class Guarded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        # Bytes of a buffer, what they were, and where in them the tensor lies.
        self.laid: list[tuple[Tensor, int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket in _WITHOUT_VALUES and found.device.type == DEVICE and found.numel():
            return self.lay(found)
        return found

    def __exit__(self, kind: Any, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self.check()

    def lay(self, like: Tensor, offset: int = 0) -> Tensor:
        """Return memory for a tensor of this shape and order, `offset` numbers after a multiple of 512 bytes."""
        each = like.element_size()
        extent = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
        first = ZONE // each + offset
        size, byte = (first + extent) * each + ZONE, poison(like.dtype)
        buffer = torch.full((size,), byte, dtype=torch.uint8, device=like.device)
        self.laid.append((buffer, byte, first * each, (first + extent) * each))
        # Not a view of the buffer: autograd forbids writing to a view that a function has returned.
        room = torch.empty(0, dtype=like.dtype, device=like.device)
        return room.set_(buffer.untyped_storage(), first, like.shape, like.stride())

    def place(self, values: Tensor, offset: int = 0) -> Tensor:
        """Return a copy, `offset` numbers after a multiple of 512 bytes; its gradient is that of the values."""
        return _Placed.apply(values, self, offset)  # type: ignore[no-untyped-call]

    def check(self) -> None:
        for buffer, byte, begin, end in self.laid:
            before, behind = (buffer[:begin] != byte).nonzero(), (buffer[end:] != byte).nonzero()
            assert not len(before), f"written {begin - int(before[-1])} bytes before a tensor of {end - begin}"
            assert not len(behind), f"written {int(behind[0])} bytes behind a tensor of {end - begin}"


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, memory: Guarded, offset: int) -> Tensor:
        return memory.lay(values, offset).copy_(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None
