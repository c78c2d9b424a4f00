"""What a learner meets: a stream of tasks, each with its own classes and its own head, or all with the same.

Images stay uint8; values of any other kind are float32 or, where they are tokens, int64. All tasks of a stream, and
all streams cut from one source, share one pool; a split is a list of positions in it, so that a pool is moved to a
device once, whatever the number of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kenyon.errors import DataError
from kenyon.streams.pool import Pool, Ragged, channels, holds_images
from kenyon.streams.views import Augmentation, Testing

# Every task has a head for its own classes; or all tasks have the same classes and share one, as in a
# domain-incremental stream, where nobody says which task a sample belongs to.
Heads = Literal["task", "shared"]


@dataclass(frozen=True, eq=False)
class Split:
    """Some samples of a pool, with labels counted from 0 within their task."""

    pool: Pool  # shared
    index: Tensor  # (n,) int64, positions in the pool
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.index)

    @property
    def images(self) -> Tensor:
        """The samples themselves, images (n, C, H, W) uint8 or values (n, *shape)."""
        if isinstance(self.pool, Ragged):
            raise DataError("Images of unequal sizes make no one tensor. Take them one by one from the pool.")
        return self.pool[self.index]


@dataclass(frozen=True, eq=False)
class Task:
    """Classes that are learned together, with their training, validation and test samples."""

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split  # empty where nothing is held out
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
    """The tasks of one run, in the order in which it meets them."""

    name: str
    seed: int
    tasks: tuple[Task, ...]
    # Along the first axis of a sample (channels, or the columns of a table), of pixels scaled to [0, 1] or of values
    # themselves; empty: values are given to the network as they are.
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
        """The images of all tasks."""
        return self.tasks[0].train.pool

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of a sample as the network sees it: (C, H, W) for images."""
        if self.testing is not None:
            return channels(self.pool), self.testing.size, self.testing.size
        if isinstance(self.pool, Ragged):
            raise DataError(f"{self.name}: images of unequal sizes need a view that makes them equal (`testing`).")
        return tuple(self.pool.shape[1:])

    @property
    def input_dtype(self) -> torch.dtype:
        """Of a sample as the network sees it: float32, or int64 where samples are tokens."""
        tokens = isinstance(self.pool, Tensor) and self.pool.dtype == torch.int64
        return torch.int64 if tokens else torch.float32

    @property
    def in_place(self) -> bool:
        """Whether samples are images, seen as they lie in their pool."""
        return holds_images(self.pool) and self.augmentation is None and self.testing is None

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Of each task."""
        return tuple(len(task.classes) for task in self.tasks)
