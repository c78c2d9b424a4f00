"""Streams to choose hyper-parameters on: what reported runs are tested on is not in them.

`withheld` makes of a source another one whose pool has no test image: whatever is cut from it, streams, tasks and
their "test" parts, is training data. A part of that is held out and takes the place of the test data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from kenyon.data.sources import Group, Source
from kenyon.data.tasks import RandomTest, RandomTestByOrigin, taken
from kenyon.errors import ConfigError, unknown

ProtocolName = Literal["held-out", "short"]

FIRST_SEED = 1_000_000  # searches have the seeds from here on, reported runs those below
REPORTED = 5  # where every seed draws its own test samples: so many reported runs (seeds 0 to 4) are spared theirs
SHORT = 5  # tasks of a short sequence


@dataclass(frozen=True)
class SearchProtocol:
    """How settings are compared, and on what share of the training data.

    held-out: the whole sequence, with other tasks, another order and another seed than any reported run has.
    short: a few random tasks, several times.
    """

    name: ProtocolName = "held-out"
    share: float = 0.2

    def __post_init__(self) -> None:
        if self.name not in get_args(ProtocolName):
            raise unknown("search protocol", self.name, get_args(ProtocolName))
        if not isinstance(self.share, float) or not 0 < self.share < 1:
            raise ConfigError(
                f"share is the part of the training data that scores, between 0 and 1, not {self.share}."
            )


@dataclass(frozen=True)
class Redealt:
    """A source's tasks with their classes dealt out anew by the seed.

    Tasks that keep their place exchange classes among each other, and so do the others.
    """

    groups: tuple[Group, ...]
    whole: bool  # the classes of a task belong together, and only the order of the tasks is shuffled
    anywhere: bool  # no task keeps its place

    def __len__(self) -> int:
        return len(self.groups)

    def deal(self, names: tuple[str, ...], seed: int) -> tuple[Group, ...]:
        groups = self.groups if self.whole else tuple(self._mixed(names, seed))
        if self.anywhere or all(group.fixed for group in groups):  # otherwise nothing would be another order
            return tuple(replace(group, fixed=False) for group in groups)
        return groups

    def _mixed(self, names: tuple[str, ...], seed: int) -> Iterator[Group]:
        shuffled = {}
        for fixed in (False, True):
            classes = [c for group in self.groups if group.fixed == fixed for c in group.classes]
            shuffled[fixed] = iter(np.random.default_rng([seed, 3, int(fixed)]).permutation(classes).tolist())
        for group in self.groups:
            classes = list(islice(shuffled[group.fixed], len(group.classes)))
            more = f" and {len(classes) - 1} more" if len(classes) > 1 else ""
            yield replace(group, name=f"{names[classes[0]]}{more}", classes=tuple(classes))


def withheld(source: Source, protocol: SearchProtocol, *, whole: bool) -> Source:
    """The source without its test data: a share of the rest, drawn by the seed, is what its streams are tested on.

    `whole`: the classes of a task belong together. Where the seed deals the classes anyway, a search's seed does.
    """
    kept = torch.nonzero(~_tested(source)).flatten()
    origin = source.test.origin if isinstance(source.test, RandomTestByOrigin) else source.origin
    groups = source.groups
    return replace(
        source,
        images=taken(source.images, kept),
        labels=source.labels[kept],
        test=RandomTest(protocol.share) if origin is None else RandomTestByOrigin(origin[kept], protocol.share),
        origin=None if origin is None else origin[kept],
        part=None if source.part is None else source.part[kept],
        groups=Redealt(groups, whole or source.part is not None, protocol.name == "short")
        if isinstance(groups, tuple)
        else groups,
    )


def _tested(source: Source) -> Tensor:
    """(N,) bool: what reported runs are tested on, where a rule draws it whatever the share for validation."""
    if isinstance(source.test, Tensor):
        return source.test.bool()
    tested = torch.zeros(len(source.labels), dtype=torch.bool)
    for seed in range(REPORTED):
        for task in source.stream(seed, validation=0.0).tasks:
            tested[task.test.index] = True
    return tested
