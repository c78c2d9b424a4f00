"""How the samples of R streams lie on a device, and how batches of them are gathered there.

    Images  uint8 with the channel last, shown as the streams' views say, scaled and normalised batch by batch
    Values  numbers or tokens of any shape, normalised once and gathered as they are

`choose_inputs` decides, once for a fleet. Every pool goes to the device once, however many streams share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.nets import Pictures
from kenyon.nets.frame import Frame
from kenyon.random import Noise
from kenyon.streams.pool import Pool, Ragged, holds_images
from kenyon.streams.task import Stream
from kenyon.streams.views import Augmentation, Testing
from kenyon.train.augment import augmented
from kenyon.train.device import Runs

P = TypeVar("P")


class Images:
    def __init__(
        self, streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
    ) -> None:
        """`refer`: whether images of all runs at once are given as places in their pools."""
        first = streams[0]
        self.augmentation, self.testing = first.augmentation, first.testing
        pad = (channels or first.input_shape[0]) - first.input_shape[0]
        self.pools = _each(streams, lambda stream: _laid(stream.pool, device, pad, frame))
        self.one_pool, self.by_reference = _one(self.pools), refer
        begin = 0 if frame is None else frame.offset
        self.rows, self.columns = (slice(begin, begin + side) for side in first.input_shape[1:])  # of a pool's images
        mean, std = torch.tensor(first.mean), torch.tensor(first.std)
        self.scale = F.pad(1 / (255 * std), (0, pad)).to(device)
        self.shift = F.pad(-mean / std, (0, pad)).to(device)
        addresses = [pool.data_ptr() if isinstance(pool, Tensor) else 0 for pool in self.pools]
        self.addresses = torch.tensor(addresses, device=device)
        self.gains, self.shifts = tuple((1 / (255 * std)).tolist()), tuple((-mean / std).tolist())

    def __call__(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor | Pictures:
        """One run's images at index (B,), normalised, (B, C, H, W) in channels_last memory; those of all runs at
        index (R, B) likewise, or by reference. With the `noise` of these runs they are shown as in training, without
        it as in tests.
        """
        if isinstance(run, slice) and self.by_reference and self._view(noise) is None:
            laid_out = partial(self._laid_out, run, index)
            return Pictures(self.addresses, index, self.gains, self.shifts, laid_out)
        return self._laid_out(run, index, noise)

    def repeated(self, index: Tensor, count: int) -> Pictures:
        """Images by reference at index (R * count, B), as if every run were so many, one after another."""
        return Pictures(self.addresses.repeat_interleave(count), index, self.gains, self.shifts)

    def _view(self, noise: Noise | None) -> Augmentation | Testing:
        return self.testing if noise is None else self.augmentation

    def _laid_out(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor:
        view = self._view(noise)
        if not isinstance(run, slice):
            pixels = augmented(view, self.pools[run], index, noise)
        elif self.one_pool:
            pixels = augmented(view, self.pools[0], index, noise)
        else:
            each = [None if noise is None else noise.of_runs(slice(r, r + 1)) for r in range(len(self.pools))]
            parts = zip(self.pools, index, each, strict=True)
            pixels = torch.stack([augmented(view, pool, i, mine) for pool, i, mine in parts])
        if view is None:
            pixels = pixels[..., self.rows, self.columns, :]
        return torch.addcmul(self.shift, pixels.to(torch.float32), self.scale).movedim(-1, -3)


class Values:
    augmentation: Augmentation = None

    def __init__(self, streams: Sequence[Stream], device: torch.device) -> None:
        def normalised(stream: Stream) -> Tensor:
            pool = stream.pool
            assert isinstance(pool, Tensor)
            values = pool.to(device)
            if not stream.mean:
                return values
            mean, std = (
                torch.tensor(v, device=device).view(-1, *(1,) * (pool.ndim - 2)) for v in (stream.mean, stream.std)
            )
            return (values - mean).div_(std)

        self.pools = _each(streams, normalised)
        self.one_pool = _one(self.pools)

    def __call__(self, run: Runs, index: Tensor, noise: Noise | None = None) -> Tensor:
        """One run's samples at index (B,), (B, *shape), or those of all runs at index (R, B)."""
        if not isinstance(run, slice):
            return self.pools[run].index_select(0, index)
        if self.one_pool:
            return self.pools[0].index_select(0, index.flatten()).unflatten(0, index.shape)
        return torch.stack([pool.index_select(0, mine) for pool, mine in zip(self.pools, index, strict=True)])


Inputs = Images | Values


def choose_inputs(
    streams: Sequence[Stream], device: torch.device, channels: int | None, frame: Frame | None, refer: bool
) -> Inputs:
    if holds_images(streams[0].pool):
        return Images(streams, device, channels, frame, refer)
    return Values(streams, device)


def _each(streams: Sequence[Stream], lay: Callable[[Stream], P]) -> list[P]:
    """The pool of every stream as it lies on the device, one for all streams that share it."""
    keys = [(id(stream.pool), stream.mean, stream.std) for stream in streams]
    laid = {key: lay(stream) for key, stream in dict(zip(keys, streams, strict=True)).items()}
    return [laid[key] for key in keys]


def _one(pools: Sequence[Pool]) -> bool:
    return all(pool is pools[0] for pool in pools)


def _laid(pool: Pool, device: torch.device, pad: int, frame: Frame | None) -> Pool:
    """With the channel last and so many empty channels behind it, images of equal sizes in their frame."""
    if isinstance(pool, Ragged):
        return replace(pool.to(device), pixels=F.pad(pool.pixels.to(device), (0, pad)))
    pool = pool.to(device).permute(0, 2, 3, 1)
    if not pad and frame is None:
        return pool.contiguous()
    N, H, W, C = pool.shape
    begin, more = (0, 0) if frame is None else (frame.offset, frame.side - H)
    laid = pool.new_zeros(N, H + more, W + more, C + pad)
    laid[:, begin : begin + H, begin : begin + W, :C] = pool
    return laid
