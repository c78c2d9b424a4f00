"""Which samples of a task are for training, for validation and for testing.

A rule is called with the task's samples, a generator of the run's seed and the share to hold out for validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Parts = tuple[Tensor, Tensor, Tensor]  # training, validation, test
Partition = Callable[[Tensor, np.random.Generator, float], Parts]


@dataclass(frozen=True, eq=False)
class FixedTest:
    """The test samples are given; validation is drawn from the others."""

    test: Tensor  # (N,) bool

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        test, train = members[self.test[members]], members[~self.test[members]]
        train = _shuffled(train, rng)
        held_out = int(validation * len(train))
        return train[held_out:], train[:held_out], test


@dataclass(frozen=True, eq=False)
class RandomTest:
    """Test samples are drawn too. Both shares are of all the task's samples."""

    share: float = 0.1

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        return _cut(_shuffled(members, rng), validation, self.share)


@dataclass(frozen=True, eq=False)
class GivenValidation:
    """The validation samples are given; the others go by another rule."""

    validation: Tensor  # (N,) bool
    others: Partition

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        held_out = self.validation[members]
        train, _, test = self.others(members[~held_out], rng, 0.0)
        return train, members[held_out], test


@dataclass(frozen=True, eq=False)
class RandomTestByOrigin:
    """Like `RandomTest`, but samples of one origin (a drawing, a person) always stay together."""

    origin: Tensor  # (N,) int64
    share: float = 0.1

    def __call__(self, members: Tensor, rng: np.random.Generator, validation: float) -> Parts:
        mine = self.origin[members]
        train, held_out, test = _cut(_shuffled(torch.unique(mine), rng), validation, self.share)
        return (
            _shuffled(members[torch.isin(mine, train)], rng),
            members[torch.isin(mine, held_out)],
            members[torch.isin(mine, test)],
        )


def _shuffled(items: Tensor, rng: np.random.Generator) -> Tensor:
    return items[torch.from_numpy(rng.permutation(len(items)))]


def _cut(items: Tensor, validation: float, test: float) -> Parts:
    held_out, tested = (round(share * len(items)) for share in (validation, test))
    rest = len(items) - tested
    return items[: rest - held_out], items[rest - held_out : rest], items[rest:]
