"""The bulk of random number making, as one pass in Triton where there is a GPU; see `random` for the meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kenyon.kernels import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

BLOCK = 2048


def mix32(x: Tensor) -> Tensor:
    """A bijection of 32-bit words with good avalanche; products wrap alike on every device."""
    if x.device.type == "cpu" and x.numel():  # in NumPy: a fifth of the time for a few words, half for many
        words: Any = x.numpy().view(np.uint32)
        words = words ^ (words >> 16)
        words *= 0x7FEB352D
        words ^= words >> 15
        words *= 0x846CA68B
        words ^= words >> 16
        return torch.from_numpy(words.view(np.int32))
    x = x.bitwise_xor((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x = x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - (1 << 32))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def keyed_words_plain(first: Tensor, second: Tensor, count: int, start: int = 0) -> Tensor:
    """Words start..start+count-1 (R, count) from two keys (R,) int32. Adding a key alone would make one stream a
    shifted copy of another: hence two keyed rounds."""
    counter = torch.arange(start, start + count, dtype=torch.int32, device=first.device)
    return mix32(mix32(counter + first.unsqueeze(1)).bitwise_xor_(second.unsqueeze(1)))


def keyed_words(first: Tensor, second: Tensor, count: int, start: int = 0) -> Tensor:
    """The same bits, by a kernel on a GPU."""
    if triton is None or not first.is_cuda:
        return keyed_words_plain(first, second, count, start)
    words = torch.empty((len(first), count), dtype=torch.int32, device=first.device)
    _words[(-(-count // BLOCK), len(first))](first, second, words, count, start, BLOCK)
    return words


@jit
def mix_words(x: tensor) -> tensor:
    """`mix32` inside a kernel."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 0x100000000)
    return x ^ ((x >> 16) & 0xFFFF)


@jit
def _words(first: tensor, second: tensor, words: tensor, count: tensor, start: tensor, BLOCK: constexpr) -> None:
    run = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = mix_words(mix_words(at + start + tl.load(first + run)) ^ tl.load(second + run))
    tl.store(words + run.to(tl.int64) * count + at, x, mask=at < count)
