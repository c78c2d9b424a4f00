"""How labelled samples of the user's own are cut into tasks, as values.

    Classes  every task has some of the classes, in the order of their labels
    Groups   every task has the classes that are named for it
    Times    every task is a part of the samples in the order in which they are given
    Domains  every task is a domain: a place, a device, a person, ...

Tasks of classes have a head each. Times and domains have the same classes and share one head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import DataError, shown
from kenyon.streams.labels import numbered
from kenyon.streams.source import Group
from kenyon.streams.task import Heads

Label = int | str


@dataclass(frozen=True)
class Tasks:
    """What a cut makes of labels."""

    groups: tuple[Group, ...]
    heads: Heads = "task"
    part: Tensor | None = None  # (N,) int64


@dataclass(frozen=True)
class Classes:
    """Tasks of so many classes each, in the order of their names."""

    each: int = 2

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        if not _whole(self.each):
            raise DataError(f"Classes takes the number of classes a task, a whole number, not {shown(self.each)}.")
        if self.each < 2:
            raise DataError(f"A task needs at least two classes to tell apart, not {self.each}.")
        if len(names) % self.each:
            raise DataError(
                f"{len(names)} classes do not make tasks of {self.each}. Choose another number, or name the classes "
                "of every task with Groups."
            )
        each = int(self.each)
        starts = range(0, len(names), each)
        return Tasks(tuple(_group(names, range(start, start + each)) for start in starts))


@dataclass(frozen=True)
class Groups:
    """The labels of every task, perhaps by the task's name. Samples of other labels are left out."""

    groups: Sequence[Sequence[Label]] | Mapping[str, Sequence[Label]]

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        named = self.groups.items() if isinstance(self.groups, Mapping) else (("", group) for group in self.groups)
        found: list[Group] = []
        taken: dict[str, int] = {}
        for number, (name, group) in enumerate(named, start=1):
            mine = [str(label) for label in group]
            for label in mine:
                if label not in names:
                    raise DataError(f"Task {number} names the class {label}, which no sample has.")
                if label in taken:
                    raise DataError(f"The class {label} is in task {taken[label]} and in task {number}.")
                taken[label] = number
            if len(mine) < 2:
                raise DataError(f"Task {number} has {len(mine)} classes; it needs two or more to tell apart.")
            found.append(_group(names, [names.index(label) for label in mine], name))
        # Runs train together when their tasks have the same sizes in the same order.
        fixed = len({len(group.classes) for group in found}) > 1
        return Tasks(tuple(replace(group, fixed=fixed) for group in found))


@dataclass(frozen=True)
class Times:
    """So many parts of equal length (the first ones one longer where need be), or those between the given places."""

    parts: int | Sequence[int]

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        count = len(labels)
        if _whole(self.parts):
            if not 1 <= self.parts <= count:
                raise DataError(f"{count} samples do not make {self.parts} parts.")
            edges = [0, *(len(some) for some in np.array_split(np.arange(count), int(self.parts)))]
            edges = np.cumsum(edges).tolist()
        else:
            if not isinstance(self.parts, Iterable):
                raise DataError(f"Times takes a whole number of parts, or a list of boundaries, not {self.parts!r}.")
            edges = [0, *self.parts, count]
            if not all(map(_whole, edges)) or any(a >= b for a, b in pairwise(edges)):
                raise DataError(
                    f"Boundaries must rise, whole numbers from above 0 to below the {count} samples; these are "
                    f"{shown(self.parts)}."
                )
            edges = list(map(int, edges))
        part = torch.repeat_interleave(torch.arange(len(edges) - 1), torch.tensor(edges).diff())
        everything = tuple(range(len(names)))
        told = [f"samples {a} to {b - 1}" for a, b in pairwise(edges)]
        return Tasks(
            tuple(Group(name, everything, fixed=True, part=p) for p, name in enumerate(told)), "shared", part
        )


@dataclass(frozen=True, eq=False)
class Domains:
    """The domain of every sample, by a number or a name. All domains have the same classes."""

    of: Any  # (N,)

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        part, domains = numbered(self.of, "domains")
        if len(part) != len(labels):
            raise DataError(f"There are {len(labels)} labels and {len(part)} domains. Give one domain a sample.")
        for number, domain in enumerate(domains):
            missing = set(range(len(names))) - set(labels[part == number].tolist())
            if missing:
                raise DataError(
                    f"The domain {domain} has no samples of the class {names[min(missing)]}, which others have. "
                    "Leave that class or that domain out."
                )
        everything = tuple(range(len(names)))
        return Tasks(tuple(Group(d, everything, part=p) for p, d in enumerate(domains)), "shared", part)


Cut = Classes | Groups | Times | Domains


def _whole(given: Any) -> TypeGuard[int]:
    """Whether it is a whole number, Python's or NumPy's."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def _group(names: tuple[str, ...], classes: Sequence[int], name: str = "") -> Group:
    return Group(name or ", ".join(names[c] for c in classes), tuple(classes))
