"""Counter-based random numbers: a pure function of their purpose.

Every draw is a hash of (seed, purpose, task, epoch, step, element). There is no state to advance or to save: a run
draws the same numbers alone or among others, on a CPU or a GPU, before or after a restart. Runs of thousands of
elements are computed in one pass, by a Triton kernel on a GPU.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

BLOCK = 2048


def mix32(x: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words with good avalanche; products wrap alike on every device."""
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
    """Return words start..start+count-1, (R, count) int32, of two keys (R,) int32. Adding one key to the counter
    would make one stream a shifted copy of another: hence two keyed rounds.
    """
    counter = torch.arange(start, start + count, dtype=torch.int32, device=first.device)
    return mix32(mix32(counter + first.unsqueeze(1)).bitwise_xor_(second.unsqueeze(1)))


def keyed_words(first: Tensor, second: Tensor, count: int, start: int = 0) -> Tensor:
    """Return `keyed_words_plain`, computed by a kernel on a GPU: the same bits."""
    if triton is None or not first.is_cuda:
        return keyed_words_plain(first, second, count, start)
    words = torch.empty((len(first), count), dtype=torch.int32, device=first.device)
    _words[(-(-count // BLOCK), len(first))](first, second, words, count, start, BLOCK)
    return words


@jit
def mix_words(x: tensor) -> tensor:
    """Apply `mix32` inside a kernel."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 0x100000000)
    return x ^ ((x >> 16) & 0xFFFF)


@jit
def _words(first: tensor, second: tensor, words: tensor, count: tensor, start: tensor, BLOCK: constexpr) -> None:
    run = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = mix_words(mix_words(at + start + tl.load(first + run)) ^ tl.load(second + run))
    tl.store(words + run.to(tl.int64) * count + at, x, mask=at < count)


_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class Purpose(enum.IntEnum):
    """Purposes of draws. Two purposes never share a stream."""

    LEARNER = 1  # a learner's first weights
    HEAD = 2  # a head's first weights
    LEARNED = 3  # the first values of parameters that a method adds
    ORDER = 4  # the order of the samples in an epoch
    DROPOUT = 5
    IMPORTANCE = 6  # dropout while importance is measured
    EXPANDED = 7  # added to a purpose when it serves the expanded network of AF-2: 8 to 13 are taken
    AUGMENTATION = 14  # which window of an image is shown
    NODES = 15  # which nodes are reinitialized, and their weights; dropout while activations are measured
    COLUMN = 16  # the first weights of an active column
    MEMORY = 17  # which samples replay keeps, and which it draws again
    MEMBER = 18  # the seed of one of several independent networks of a run
    GAMES = 19  # the seed of a game's copies
    ACTION = 20  # which action is taken
    EVALUATION = 21  # the seed of a game that is scored
    ANALYSIS = 32  # directions in which a trained network is perturbed


def key(*words: int) -> int:
    """Mix whole numbers into one 63-bit key (splitmix64 finalizer, one round a word)."""
    state = 0
    for word in words:
        z = (state + (word & _WORD) * _GOLDEN + _GOLDEN) & _WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
        state = z ^ (z >> 31)
    return state >> 1  # non-negative, so that it fits a signed tensor and any seeding function


@dataclass(frozen=True)
class Noise:
    """The random bytes of one step of every run, as the two keys (R,) int32 that determine them; of several steps,
    (S, R).
    """

    first: Tensor
    second: Tensor

    @classmethod
    def at(cls, keys: Tensor, step: Tensor) -> Noise:
        """Derive from keys (R,) int64 and a step (1,), or steps (S, 1), int64."""
        low = (keys & 0x7FFFFFFF).to(torch.int32)
        high = (keys >> 31).to(torch.int32)
        moment = mix32(low + step.to(torch.int32) * 0x2545F491).bitwise_xor_(high)
        return cls(moment, mix32(moment + low))

    def of_step(self, step: Tensor) -> Noise:
        """Return one of several steps. `step` is a tensor (1,), so that a captured CUDA graph can advance it."""
        return Noise(*(x.index_select(0, step).squeeze(0) for x in (self.first, self.second)))

    def of_steps(self, steps: Tensor) -> Noise:
        """Return several steps (G,), each as a run of its own: (R * G,), run by run."""
        return Noise(*(x.index_select(0, steps).T.flatten() for x in (self.first, self.second)))

    def of_runs(self, runs: slice) -> Noise:
        return Noise(self.first[runs], self.second[runs])

    def words(self, count: int, start: int = 0) -> Tensor:
        """Return words start..start+count-1, (R, count) int32."""
        return keyed_words(self.first, self.second, count, start)

    def bytes(self, count: int, start: int = 0) -> Tensor:
        """Return bytes start..start+count-1, (R, count) uint8. `start` is a multiple of 4."""
        return self.words(-(-count // 4), start // 4).view(torch.uint8)[:, :count]


def random_words(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Return `count` random words (R, count) int32 of keys (R,) int64 at a step (1,) int64."""
    return Noise.at(keys, step).words(count)


def random_bytes(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Return `count` random bytes (R, count) uint8 of keys (R,) int64 at a step (1,) int64."""
    return Noise.at(keys, step).bytes(count)


def shuffled(keys: Tensor, sizes: Tensor, width: int) -> Tensor:
    """Return for each key a random order of 0..size-1, padded with the positions size..width-1: (R, width)."""
    words = random_words(keys, torch.zeros(1, dtype=torch.long, device=keys.device), width).to(torch.long)
    position = torch.arange(width, device=keys.device)
    words = words.masked_fill(position >= sizes.unsqueeze(1), torch.iinfo(torch.int32).max + 1)
    return words.argsort(dim=1, stable=True)


def normal(seed_key: int, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers of a key, on the CPU."""
    generator = torch.Generator().manual_seed(seed_key)
    return torch.randn(shape, generator=generator)
