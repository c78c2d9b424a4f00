"""What the device can do at best, measured at the start of a bench: a large copy and a large matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kenyon.bench.timing import Clock, Effort, in_turns


@dataclass(frozen=True)
class Ceilings:
    bytes_per_s: float  # read and written by a copy
    operations_per_s: float  # of a square matrix product, two a multiply-add
    dtype: str  # of the product's matrices: the one the learners compute in
    copied_mib: int
    product_size: int
    n: int  # the best of so many


def measure_ceilings(device: torch.device, dtype: torch.dtype, *, quick: bool = False) -> Ceilings:
    cuda = device.type == "cuda"
    mib, size = (1024, 8192) if cuda else (256, 2048)
    if quick:
        mib, size = 16, 256
    effort = Effort(warmup=0, least=6, most=6, seconds=0.0)
    clock = Clock(device)
    source = torch.ones(mib * 2**20 // 4, device=device)
    target = torch.empty_like(source)
    a, b, product = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    copies, products = in_turns([lambda: target.copy_(source), lambda: torch.mm(a, b, out=product)], clock, effort)
    return Ceilings(
        bytes_per_s=2 * mib * 2**20 / min(copies),
        operations_per_s=2 * size**3 / min(products),
        dtype=str(dtype).removeprefix("torch."),
        copied_mib=mib,
        product_size=size,
        n=effort.least,
    )
