"""From labelled images to streams: a source is read once, and each seed cuts its own stream from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import ConfigError, DataError
from kenyon.streams.task import Split, Stream, Task


@dataclass(frozen=True)
class Group:
    """The classes of one task, as positions in the source's class names."""

    name: str
    classes: tuple[int, ...]
    fixed: bool = False  # keeps its place; only the others are shuffled by the seed


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled images before any seed has touched them."""

    name: str
    images: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64, into class_names
    test: Tensor  # (N,) bool
    class_names: tuple[str, ...]
    groups: tuple[Group, ...]  # one per task
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(f"{self.name}: images must be uint8 of shape (N, C, H, W).")
        if not len(self.images) == len(self.labels) == len(self.test):
            raise DataError(f"{self.name}: images, labels and the test mask differ in length.")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise DataError(f"{self.name}: labels must run from 0 to {len(self.class_names) - 1}.")

    def stream(self, seed: int, *, tasks: int | None = None, validation: float = 0.1) -> Stream:
        """Cut the stream of one run: the seed shuffles the order of the tasks and draws the validation sets.

        `tasks` keeps only the first so many tasks of the shuffled order.
        """
        if seed < 0:
            raise ConfigError(f"Seeds are 0 or larger, not {seed}.")
        count = len(self.groups) if tasks is None else tasks
        if not 1 <= count <= len(self.groups):
            raise ConfigError(f"{self.name} has {len(self.groups)} tasks; --tasks {count} is not possible.")
        if not 0.0 < validation < 1.0:
            raise ConfigError(f"validation is the share of held-out samples, between 0 and 1, not {validation}.")
        free = [i for i, group in enumerate(self.groups) if not group.fixed]
        shuffled = iter(np.random.default_rng([seed, 0]).permutation(free).tolist())
        order = [i if group.fixed else next(shuffled) for i, group in enumerate(self.groups)][:count]
        return Stream(
            name=self.name,
            seed=seed,
            tasks=tuple(self._task(self.groups[i], seed, i, validation) for i in order),
            mean=self.mean,
            std=self.std,
        )

    def _task(self, group: Group, seed: int, position: int, validation: float) -> Task:
        # Classes are renumbered in the order in which the group names them.
        local = torch.full((len(self.class_names),), -1, dtype=torch.long)
        local[list(group.classes)] = torch.arange(len(group.classes))
        labels = local[self.labels]
        members = torch.nonzero(labels >= 0).flatten()
        test, train = members[self.test[members]], members[~self.test[members]]
        # The draw depends on the task itself, not on its place in the order.
        shuffle = np.random.default_rng([seed, 1, position]).permutation(len(train))
        train = train[torch.from_numpy(shuffle)]
        held_out = int(validation * len(train))

        def split(index: Tensor) -> Split:
            return Split(self.images, index, labels[index])

        return Task(
            name=group.name,
            classes=tuple(self.class_names[c] for c in group.classes),
            train=split(train[held_out:]),
            validation=split(train[:held_out]),
            test=split(test),
        )
