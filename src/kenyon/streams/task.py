"""What a learner meets: a stream of tasks, each with its own classes and its own head.

Images stay uint8. All tasks of a stream, and all streams cut from one source, share one image pool; a
split is a list of positions in it, so that a pool is moved to a device once, whatever the number of runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kenyon.errors import DataError
from kenyon.streams.pool import Pool, Ragged, channels
from kenyon.streams.views import Augmentation, Testing


@dataclass(frozen=True, eq=False)
class Split:
    """Some samples of a pool, with labels counted from 0 within their task."""

    pool: Pool  # (N, C, H, W) uint8 or of unequal sizes, shared
    index: Tensor  # (n,) int64, positions in the pool
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.index)

    @property
    def images(self) -> Tensor:
        """The samples themselves, (n, C, H, W) uint8."""
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
    mean: tuple[float, ...]  # per channel, of pixels scaled to [0, 1]
    std: tuple[float, ...]
    augmentation: Augmentation = None
    testing: Testing = None

    @property
    def pool(self) -> Pool:
        """The images of all tasks."""
        return self.tasks[0].train.pool

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) as the network sees it."""
        if self.testing is not None:
            return channels(self.pool), self.testing.size, self.testing.size
        if isinstance(self.pool, Ragged):
            raise DataError(f"{self.name}: images of unequal sizes need a view that makes them equal (`testing`).")
        c, h, w = self.pool.shape[1:]
        return int(c), int(h), int(w)

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Of each task."""
        return tuple(len(task.classes) for task in self.tasks)
