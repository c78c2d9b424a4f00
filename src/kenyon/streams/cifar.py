"""The three CIFAR streams of the field: random and superclass tasks, small images of everyday things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kenyon.streams.catalog import register
from kenyon.streams.cifar_files import Cifar, read_cifar_10, read_cifar_100
from kenyon.streams.source import Group, Source

SHAPE = (3, 32, 32)
PER_TASK = 5
# Of CIFAR-100; used for CIFAR-10 too, so that one stream has one scale. (The authors' code has its own for CIFAR-10.)
MEAN = (0.5071, 0.4867, 0.4408)
STD = (0.2675, 0.2565, 0.2761)


@register(class_counts=(PER_TASK,) * 20, shape=SHAPE, needs=("cifar-100",))
def r_cifar_100(data: Path | None = None) -> Source:
    """CIFAR-100, 20 tasks of 5 classes in alphabetical order: unrelated classes share a task."""
    cifar = read_cifar_100(data)
    return _source("r-cifar-100", [cifar], _consecutive(cifar.names))


@register(class_counts=(PER_TASK,) * 20, shape=SHAPE, needs=("cifar-100",), whole=True)
def s_cifar_100(data: Path | None = None) -> Source:
    """CIFAR-100, 20 tasks that are its superclasses (fish, flowers, ...) of 5 similar classes each."""
    cifar = read_cifar_100(data)
    members = [np.flatnonzero(np.equal(cifar.superclass_of, s)) for s in range(len(cifar.superclasses))]
    groups = [Group(name, tuple(classes.tolist())) for name, classes in zip(cifar.superclasses, members, strict=True)]
    return _source("s-cifar-100", [cifar], groups)


@register(class_counts=(PER_TASK,) * 22, shape=SHAPE, needs=("cifar-10", "cifar-100"))
def r_cifar_10_100(data: Path | None = None) -> Source:
    """CIFAR-10 as 2 tasks of many images, always first, then the 20 tasks of r-cifar-100."""
    large, small = read_cifar_10(data), read_cifar_100(data)
    groups = _consecutive(large.names, fixed=True) + _consecutive(small.names, start=len(large.names))
    return _source("r-cifar-10-100", [large, small], groups)


def _consecutive(names: tuple[str, ...], *, start: int = 0, fixed: bool = False) -> list[Group]:
    """Tasks of neighbouring labels; `start` is the position of the first name among the source's classes."""
    return [
        Group(
            f"{names[first]} to {names[first + PER_TASK - 1]}",
            tuple(range(start + first, start + first + PER_TASK)),
            fixed,
        )
        for first in range(0, len(names), PER_TASK)
    ]


def _source(name: str, parts: list[Cifar], groups: list[Group]) -> Source:
    """One pool of all parts' images; the classes of each part follow those of the part before it."""
    starts = np.cumsum([0, *(len(part.names) for part in parts)])
    pixels = np.concatenate([block for part in parts for block in part.pixels])  # the only copy
    labels = np.concatenate([part.labels + start for part, start in zip(parts, starts, strict=False)])
    return Source(
        name=name,
        images=torch.from_numpy(pixels).view(-1, *SHAPE),
        labels=torch.from_numpy(labels),
        test=torch.from_numpy(np.concatenate([part.test for part in parts])),
        class_names=tuple(name for part in parts for name in part.names),
        groups=tuple(groups),
        mean=MEAN,
        std=STD,
    )
