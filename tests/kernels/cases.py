"""Numbers and tolerances that the conformance tests share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.interpreter import DEVICE, INTERPRETED

SOME = (1, 2, 3, 7, 8, 9, 15, 16, 17, 21, 31, 32, 33, 61, 63, 64, 65, 70)  # where every size is compiled for itself
ALL = SOME if INTERPRETED else tuple(range(1, 71))  # the interpreter takes seconds for what a GPU does at once
FLOATS = (torch.float32, torch.bfloat16)
# The interpreter cuts bfloat16 off where a GPU rounds it.
ULP = {torch.float32: 1e-6, torch.bfloat16: 2**-6 if INTERPRETED else 2**-7}


def offset_of(size: int) -> int:
    """Return the offset of an operand, 1 to 15 numbers: never a multiple of 16 bytes in bfloat16."""
    return size % 7 + 1 + 8 * (size % 2)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def quarters(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Multiples of 1/4, of which bfloat16 holds small sums exactly; there are many ties."""
    return ((normal(*shape, seed=seed) * 4).round() / 4).to(dtype)


def bytes_(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(DEVICE)


def double(*tensors: Tensor) -> list[Tensor]:
    """Copies to differentiate by, in float64."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def same(
    found: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor], rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    if isinstance(found, Tensor):
        found, expected = [found], [expected]  # type: ignore[list-item]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach().double(), other.detach().double(), rtol=rtol, atol=atol)
