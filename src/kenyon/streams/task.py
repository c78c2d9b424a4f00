"""What a learner meets: a stream of tasks, each with its own classes and its own head.

Images stay uint8. All tasks of a stream, and all streams cut from one source, share one image pool; a
split is a list of positions in it, so that a pool is moved to a device once, whatever the number of runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kenyon.errors import DataError


@dataclass(frozen=True, eq=False)
class Split:
    """Some samples of a pool, with labels counted from 0 within their task."""

    pool: Tensor  # (N, C, H, W) uint8, shared
    index: Tensor  # (n,) int64, positions in the pool
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.index)

    @property
    def images(self) -> Tensor:
        """The samples themselves, (n, C, H, W) uint8."""
        return self.pool[self.index]


@dataclass(frozen=True, eq=False)
class Task:
    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
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

    @property
    def input_shape(self) -> tuple[int, int, int]:
        c, h, w = self.tasks[0].train.pool.shape[1:]
        return int(c), int(h), int(w)

    @property
    def class_counts(self) -> tuple[int, ...]:
        return tuple(len(task.classes) for task in self.tasks)
