"""Streams for hyper-parameter search, without the test data of reported runs.

`withheld` removes the test samples from the pool of a source: all streams, tasks and "test" splits cut from it are
training data, of which a share is held out and takes the place of the test data.
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
from kenyon.data.tasks import RandomTest, RandomTestByOrigin
from kenyon.errors import ConfigError, unknown
from kenyon.utils.checks import as_number

ProtocolName = Literal["held-out", "short"]

FIRST_SEED = 1_000_000  # the first seed of searches; reported runs have those below
REPORTED = 5  # if each seed draws its test samples, those of seeds 0 to 4 are withheld
SHORT = 5  # tasks of a short sequence


@dataclass(frozen=True)
class SearchProtocol:
    """The sequence of tasks on which settings are compared, and the share of the training data that scores them.

    held-out: the whole sequence, with other tasks, another order and another seed than any reported run has.
    short: a few random tasks, several times.
    """

    name: ProtocolName = "held-out"
    share: float = 0.2

    def __post_init__(self) -> None:
        if self.name not in get_args(ProtocolName):
            raise unknown("search protocol", self.name, get_args(ProtocolName))
        share = as_number(self.share)
        if share is None or not 0 < share < 1:
            raise ConfigError(
                f"share is the part of the training data that scores, between 0 and 1, not {self.share}."
            )


@dataclass(frozen=True)
class Redealt:
    """The tasks of a source with their classes shuffled by the seed.

    Tasks that keep their place exchange classes with each other, and so do the others.
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
    """Return the source without its test data. Its streams are tested on a share of the rest, drawn by the seed.

    `whole`: the classes of a task belong together. If classes depend on the seed, they depend on that of the search.
    """
    kept = torch.nonzero(~_tested(source)).flatten()
    origin = getattr(source.test, "origin", source.origin)
    groups = source.groups
    return replace(
        source,
        images=source.images.index_select(0, kept),
        labels=source.labels[kept],
        test=RandomTest(protocol.share) if origin is None else RandomTestByOrigin(origin[kept], protocol.share),
        origin=None if origin is None else origin[kept],
        part=None if source.part is None else source.part[kept],
        groups=groups
        if hasattr(groups, "deal")
        else Redealt(groups, whole or source.part is not None, protocol.name == "short"),
    )


def _tested(source: Source) -> Tensor:
    """Return the test samples of reported runs as a mask, (N,) bool; rules draw them for any validation share."""
    if isinstance(source.test, Tensor):
        return source.test.bool()
    tested = torch.zeros(len(source.labels), dtype=torch.bool)
    for seed in range(REPORTED):
        for task in source.stream(seed, validation=0.0).tasks:
            tested[task.test.index] = True
    return tested
