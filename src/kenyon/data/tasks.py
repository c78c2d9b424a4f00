"""Streams of tasks, the splits of a task, and the pool of samples that they index.

Images are uint8; other values are float32, or int64 for tokens. All tasks of a stream, and all streams of one source,
share one pool: a tensor, or a `Ragged` for images of different sizes. A split is a list of positions in the pool, so
that the pool is moved to a device once, whatever the number of runs.

Views describe how training and tests show an image; `kenyon.training.augmentation` computes them, and None shows the
image as it is. Partitions divide the samples of a task into training, validation and test: each is called with the
samples, a generator of the run's seed and the share to hold out for validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import DataError


@dataclass(frozen=True)
class Crop:
    """A random window of the size of the image, after adding `padding` black pixels on each side."""

    padding: int = 4
    flip: bool = True  # left to right, with probability 1/2


@dataclass(frozen=True)
class ResizedCrop:
    """A random window of random area (a share of the image's) and aspect (width / height), scaled to a square."""

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True


@dataclass(frozen=True)
class CentreCrop:
    """The square in the middle of the image."""

    size: int = 224


Augmentation = Crop | ResizedCrop | None  # in training
Testing = CentreCrop | None  # in tests, and wherever else views must not be random

Parts = tuple[Tensor, Tensor, Tensor]  # training, validation, test
Partition = Callable[[Tensor, np.random.Generator, float], Parts]


@dataclass(frozen=True, eq=False)
class FixedTest:
    """Given test samples; validation is drawn from the others."""

    test: Tensor  # (N,) bool

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        test, train = members[self.test[members]], members[~self.test[members]]
        train = _shuffled(train, rng)
        held_out = int(validation * len(train))
        return train[held_out:], train[:held_out], test


@dataclass(frozen=True, eq=False)
class RandomTest:
    """Test and validation samples drawn at random. Both shares are of all samples of the task."""

    share: float = 0.1

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        return _cut(_shuffled(members, rng), validation, self.share)


@dataclass(frozen=True, eq=False)
class GivenValidation:
    """Given validation samples; another partition divides the others."""

    validation: Tensor  # (N,) bool
    others: Partition

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        held_out = self.validation[members]
        train, _, test = self.others(members[~held_out], rng, 0.0)
        return train, members[held_out], test


@dataclass(frozen=True, eq=False)
class RandomTestByOrigin:
    """Like `RandomTest`, but samples of one origin (a drawing, a person) stay together."""

    origin: Tensor  # (N,) int64
    share: float = 0.1

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        origins = self.origin[members]
        train, held_out, test = _cut(_shuffled(torch.unique(origins), rng), validation, self.share)
        return (
            _shuffled(members[torch.isin(origins, train)], rng),
            members[torch.isin(origins, held_out)],
            members[torch.isin(origins, test)],
        )


def _shuffled(items: Tensor, rng: np.random.Generator) -> Tensor:
    return items[torch.from_numpy(rng.permutation(len(items)))]


def _cut(items: Tensor, validation: float, test: float) -> Parts:
    held_out, tested = (round(share * len(items)) for share in (validation, test))
    rest = len(items) - tested
    return items[: rest - held_out], items[rest - held_out : rest], items[rest:]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Images of different sizes, row by row in one tensor. Where sizes do not matter it is used like a tensor."""

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

    @property
    def dtype(self) -> torch.dtype:
        return self.pixels.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C): heights and widths differ."""
        return len(self.start), int(self.pixels.shape[1])

    def __getitem__(self, position: int) -> Tensor:
        """Return one image, (C, H, W)."""
        start, height, width = (int(x[position]) for x in (self.start, self.height, self.width))
        return self.pixels[start : start + height * width].view(height, width, -1).permute(2, 0, 1)

    def index_select(self, dim: int, index: Tensor) -> Ragged:
        """Return the images at `index` (n,), over the same pixels."""
        assert dim == 0
        return Ragged(self.pixels, self.start[index], self.height[index], self.width[index])

    def to(self, device: torch.device) -> Ragged:
        return Ragged(*(x.to(device) for x in (self.pixels, self.start, self.height, self.width)))


# A tensor of images is (N, C, H, W) uint8. Any other holds values, (N, *shape): float32 numbers, or int64 tokens.
Pool = Tensor | Ragged
VALUES = (torch.float32, torch.int64)
NEEDS_VIEW = "{}: images of unequal sizes need a view that makes them equal (`testing`)."


def holds_images(pool: Pool) -> bool:
    return pool.dtype == torch.uint8


def channels(pool: Pool) -> int:
    return int(pool.shape[1])


def equal_sizes(pool: Pool, otherwise: str) -> Tensor:
    """Return the pool as a tensor; raise DataError, with the message `otherwise`, if its images differ in size."""
    if isinstance(pool, Ragged):
        raise DataError(otherwise)
    return pool


def check_pool(name: str, pool: Pool) -> None:
    """Raise DataError unless the pool has a shape and a dtype that Kenyon takes, and finite values."""
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
    """Raise DataError for images (N, H, W, C), which would pass for narrow images of many channels."""
    if shape[3] in (1, 3, 4) and min(shape[1:3]) > 4:
        raise DataError(
            f"{name}: images are (N, C, H, W); these, {shape}, seem to have their channels last. Move them: "
            "numpy.moveaxis(x, -1, 1)."
        )


# Every task has a head for its own classes; or all tasks have the same classes and share one head, as in a
# domain-incremental stream, where the task of a sample is not given.
Heads = Literal["task", "shared"]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of a pool, with labels counted from 0 within their task."""

    pool: Pool  # shared
    index: Tensor  # (n,) int64, positions in the pool
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.index)

    @property
    def images(self) -> Tensor:
        """The samples, images (n, C, H, W) uint8 or values (n, *shape)."""
        pool = equal_sizes(
            self.pool, "Images of unequal sizes make no one tensor. Take them one by one from the pool."
        )
        return pool[self.index]


@dataclass(frozen=True, eq=False)
class Task:
    """Classes learned together, with their training, validation and test samples."""

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split  # empty if nothing is held out
    test: Split

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            if len(getattr(self, part)) == 0:
                raise DataError(
                    f"Task '{self.name}' has no {part} samples. Give it more data, "
                    "or choose a validation share that leaves at least one sample on each side."
                )


@dataclass(frozen=True, eq=False)
class Stream:
    """The tasks of one run, in the order in which it learns them."""

    name: str
    seed: int
    tasks: tuple[Task, ...]
    # Along the first axis of a sample (channels, or the columns of a table), of pixels scaled to [0, 1] or of values;
    # empty: the network gets values as they are.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augmentation: Augmentation = None
    testing: Testing = None
    heads: Heads = "task"

    def __post_init__(self) -> None:
        different = next((task for task in self.tasks if task.classes != self.tasks[0].classes), None)
        if self.heads == "shared" and different is not None:
            raise DataError(
                f"{self.name}: tasks that share a head need the same classes in the same order; '{different.name}' "
                f"has others than '{self.tasks[0].name}'."
            )

    @property
    def pool(self) -> Pool:
        """The samples of all tasks."""
        return self.tasks[0].train.pool

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a sample at the input of the network: (C, H, W) for images."""
        if self.testing is not None:
            return channels(self.pool), self.testing.size, self.testing.size
        return tuple(equal_sizes(self.pool, NEEDS_VIEW.format(self.name)).shape[1:])

    @property
    def input_dtype(self) -> torch.dtype:
        """Dtype of a sample at the input of the network: int64 for tokens, else float32."""
        return torch.int64 if self.pool.dtype == torch.int64 else torch.float32

    @property
    def in_place(self) -> bool:
        """True if samples are images, shown as they are in the pool."""
        return holds_images(self.pool) and self.augmentation is None and self.testing is None

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Number of classes of each task."""
        return tuple(len(task.classes) for task in self.tasks)
