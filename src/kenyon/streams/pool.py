"""Where the samples of a source lie: images or values in one tensor, or pixels in one when images differ in size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.errors import DataError


@dataclass(frozen=True, eq=False)
class Ragged:
    """Images of unequal sizes, row by row in one tensor."""

    pixels: Tensor  # (P, C) uint8
    start: Tensor  # (N,) int64, each image's first pixel
    height: Tensor  # (N,) int64
    width: Tensor  # (N,) int64

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 2:
            raise DataError("The pixels of images of unequal sizes must be uint8 of shape (P, C).")
        if not len(self.start) == len(self.height) == len(self.width):
            raise DataError("Images of unequal sizes need one start, height and width each.")
        if len(self) and not self._inside():
            raise DataError("Images of unequal sizes must have pixels and lie within those given.")

    def _inside(self) -> bool:
        ends = self.start + self.height * self.width
        smallest = min(int(self.height.min()), int(self.width.min()))
        return smallest > 0 and int(self.start.min()) >= 0 and int(ends.max()) <= len(self.pixels)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, position: int) -> Tensor:
        """One image, (C, H, W)."""
        start, height, width = (int(x[position]) for x in (self.start, self.height, self.width))
        return self.pixels[start : start + height * width].view(height, width, -1).permute(2, 0, 1)

    def to(self, device: torch.device) -> Ragged:
        return Ragged(*(x.to(device) for x in (self.pixels, self.start, self.height, self.width)))


# A tensor of images is (N, C, H, W) uint8. Any other holds values, (N, *shape): float32 numbers, or int64 tokens.
Pool = Tensor | Ragged
VALUES = (torch.float32, torch.int64)


def holds_images(pool: Pool) -> bool:
    return isinstance(pool, Ragged) or pool.dtype == torch.uint8


def check_pool(name: str, pool: Pool) -> None:
    if isinstance(pool, Ragged):
        return
    if holds_images(pool):
        if pool.ndim != 4:
            raise DataError(
                f"{name}: images of bytes (uint8) must have the shape (N, C, H, W), not {tuple(pool.shape)}. "
                "Give other values as float32, tokens as int64."
            )
        check_channels(name, tuple(pool.shape))
    elif pool.dtype not in VALUES:
        raise DataError(
            f"{name}: samples must be images of bytes (uint8), float32 values or int64 tokens, not "
            f"{str(pool.dtype).removeprefix('torch.')}."
        )
    elif pool.ndim < 2:
        raise DataError(f"{name}: samples must have the shape (N, ...), not {tuple(pool.shape)}. Add an axis.")
    elif pool.is_floating_point() and not bool(pool.isfinite().all()):
        first = int((~pool.isfinite()).flatten(1).any(1).nonzero()[0])
        raise DataError(f"{name}: sample {first} has values that are NaN or infinite. Replace or leave out such.")


def check_channels(name: str, shape: tuple[int, ...]) -> None:
    """Images that are (N, H, W, C) would be taken for narrow ones of many channels, without a word."""
    if shape[3] in (1, 3, 4) and min(shape[1:3]) > 4:
        raise DataError(
            f"{name}: images are (N, C, H, W); these, {shape}, seem to have their channels last. Move them: "
            "numpy.moveaxis(x, -1, 1)."
        )


def taken(pool: Pool, index: Tensor) -> Pool:
    """A pool of these samples only. Of unequal images the pixels of the others stay, but nothing leads there."""
    if isinstance(pool, Ragged):
        return Ragged(pool.pixels, pool.start[index], pool.height[index], pool.width[index])
    return pool[index]


def channels(pool: Pool) -> int:
    return int(pool.pixels.shape[1] if isinstance(pool, Ragged) else pool.shape[1])
