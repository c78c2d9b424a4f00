"""Labels of any kind as numbers from 0 on.

How labelled samples of the user's own are cut into tasks, as values.

    Classes  every task has some of the classes, in the order of their labels
    Groups   every task has the classes that are named for it
    Times    every task is a part of the samples in the order in which they are given
    Domains  every task is a domain: a place, a device, a person, ...

Tasks of classes have a head each. Times and domains have the same classes and share one head.

Streams from the user's own arrays: samples x, labels y, and how they are cut into tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.data.sources import Group, Source
from kenyon.data.tasks import FixedTest, GivenValidation, Heads, Partition, RandomTest, channels, check_pool
from kenyon.errors import DataError, expected, shown


def numbered(labels: Any, what: str = "labels") -> tuple[Tensor, tuple[str, ...]]:
    """(N,) int64, and the labels themselves in their order: numbers by size, strings by the alphabet."""
    found = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if found.ndim != 1:
        raise DataError(f"{what} must be one a sample, (N,), not of the shape {found.shape}.")
    if len(found) == 0:
        raise DataError(f"There are no {what}, and so no samples.")
    whole = found.dtype.kind in "iub" or (found.dtype == object and _all(found, (Integral, np.bool_)))
    strings = found.dtype.kind == "U" or (found.dtype == object and _all(found, str))
    if not strings and not whole:
        raise DataError(f"{what} must be integers or strings, not {_kind(found)}. Convert them first.")
    names, numbers = np.unique(found.astype(str) if strings else found, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)


def _all(labels: Any, kinds: type | tuple[type, ...]) -> bool:
    return all(isinstance(label, kinds) for label in labels)


def _kind(found: Any) -> str:
    if found.dtype != object:
        return str(found.dtype)
    return ", ".join(sorted({type(label).__name__ for label in found}))


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


AT_ONCE = 2**18  # bytes that are made numbers together
GRAIN = 2**15  # numbers that PyTorch gives a thread at least
ROUNDING = 1e-9  # of a mean: what varies less is always the same


def from_arrays(
    x: Any,
    y: Any,
    by: Cut | None = None,
    *,
    test: float | Any = 0.2,
    validation: Any = None,
    normalise: bool = True,
    ordered: bool = False,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
) -> Source:
    """A source of labelled samples: NumPy arrays, tensors, or whatever NumPy makes arrays of.

    x (N, ...): bytes (uint8) of the shape (N, C, H, W) are images, other integers tokens, and floats values of any
    shape. y (N,): integers, bools or strings. `by`: how they make tasks (`Classes`, `Groups`, `Times`, `Domains`);
    left out, two classes each.

    `test`: which samples test, (N,) bool, or the share of every task that the seed of a run draws. `validation`:
    which samples validate, (N,) bool; left out, the seed draws the share that the training regime asks for.
    `normalise`: by mean and standard deviation of every channel or column, over all samples that do not test (where
    the seed draws them: over all samples). `ordered`: tasks come in the order of the cut, else the seed shuffles
    them; times are ordered anyway. `classes`: the names of the classes that y counts from 0; a cut may take either.
    """
    pool = as_pool(x)
    check_pool(name, pool)
    labels, names = numbered(y)
    if classes is not None:
        names = _named(names, classes, name)
        by = _by_name(by, classes)
    if len(pool) != len(labels):
        raise DataError(f"{name}: x has {len(pool)} samples and y {len(labels)} labels. Give one label a sample.")
    if len(names) < 2:
        raise DataError(f"{name}: all samples have the class {', '.join(names)}. A task needs two or more.")
    if by is not None and not hasattr(by, "cut"):
        raise expected("by", "a cut into tasks, such as Classes(2), Domains(places) or Times(when)", by)
    tasks = (by or Classes()).cut(labels, names)
    groups = tuple(replace(group, fixed=group.fixed or ordered) for group in tasks.groups)
    tested = None if isinstance(test, float) else _mask(test, len(labels), f"{name}: test")
    if tested is not None and bool(tested.all()):
        raise DataError(f"{name}: all samples are for test. Leave some to learn from.")
    rule: Tensor | Partition = RandomTest(_share(test)) if tested is None else tested
    if validation is not None:
        held_out = _mask(validation, len(labels), f"{name}: validation")
        if tested is not None and bool((tested & held_out).any()):
            raise DataError(f"{name}: some samples are for test and for validation. Give each one purpose.")
        rule = GivenValidation(held_out, FixedTest(rule) if isinstance(rule, Tensor) else rule)
    mean, std = moments(pool if tested is None else pool[~tested], normalise)
    return Source(name, pool, labels, rule, names, groups, mean, std, part=tasks.part, heads=tasks.heads)


def _named(numbers: tuple[str, ...], classes: Sequence[str], name: str) -> tuple[str, ...]:
    """The names of those classes that samples have."""
    places = [int(number) if number.removeprefix("-").isdigit() else -1 for number in numbers]
    strange = next((number for number, at in zip(numbers, places, strict=True) if not 0 <= at < len(classes)), None)
    if strange is not None:
        raise DataError(
            f"{name}: a sample has the label {strange}, and there are {len(classes)} classes, counted from 0. Leave "
            "out samples without a label."
        )
    return tuple(str(classes[at]) for at in places)


def _by_name(by: Cut | None, classes: Sequence[str]) -> Cut | None:
    """A cut into groups with the classes by name, where they are given by number."""
    if not isinstance(by, Groups):
        return by
    numbers = {str(number): str(called) for number, called in enumerate(classes) if str(number) not in classes}

    def named(group: Sequence[Any]) -> list[str]:
        return [numbers.get(str(label), str(label)) for label in group]

    if isinstance(by.groups, Mapping):
        return Groups({task: named(group) for task, group in by.groups.items()})
    return Groups([named(group) for group in by.groups])


def as_pool(x: Any) -> Tensor:
    """Numbers of any kind in one of those that a pool may have."""
    if isinstance(x, Tensor):
        pool = x.detach().cpu()
    else:
        try:
            found = np.asarray(x)
        except ValueError as error:
            raise DataError(f"x makes no array: {error}. Bring all samples to one shape.") from error
        if found.dtype.kind not in "fiubc":
            raise DataError(f"x must be an array of numbers, not of {found.dtype}. Turn its columns into numbers.")
        pool = as_tensor(found)
    if pool.is_complex():
        raise DataError(
            "x has complex numbers. Give their real and imaginary parts, or their absolute values, as numbers of "
            "their own."
        )
    if pool.dtype == torch.uint8:
        return pool
    whole = not pool.is_floating_point() and pool.dtype != torch.bool
    return pool.to(torch.int64 if whole else torch.float32)


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """The same numbers in the same memory where that is contiguous. Nobody writes to what users give, so memory that
    may only be read, such as that of a file, will do; PyTorch would warn of it.
    """
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writeable(array)))


class _Writeable:
    """An array's memory, under a flag that says it may be written to."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _share(test: float) -> float:
    if not 0 < test < 1:
        raise DataError(f"test is a share between 0 and 1, or one bool a sample, not {test}.")
    return test


def _mask(given: Any, count: int, what: str) -> Tensor:
    try:
        mask = torch.as_tensor(given if isinstance(given, Tensor) else np.asarray(given))
    except (TypeError, ValueError):
        raise DataError(f"{what} must be {count} bools, one a sample, not {shown(given)}.") from None
    if mask.dtype != torch.bool or mask.shape != (count,):
        raise DataError(f"{what} must be {count} bools, one a sample, not {tuple(mask.shape)} of {mask.dtype}.")
    return mask


def moments(pool: Tensor, normalise: bool = True) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel or column, of pixels scaled to [0, 1]; what never varies has 1.
    Not to be normalised, pixels only become numbers from 0 to 1 and values stay; tokens always do.
    """
    images = pool.dtype == torch.uint8
    if pool.dtype == torch.int64 or not (normalise or images):
        return (), ()
    if not normalise:
        return (0.0,) * channels(pool), (1.0,) * channels(pool)
    each = pool.movedim(1, 0)  # a channel at a time: in double precision a whole pool could be large
    if images:
        means, spreads = zip(*map(_byte_moments, each), strict=True)
    else:
        means = tuple(float(channel.mean(dtype=torch.float64)) for channel in each)
        spreads = tuple(float(channel.double().std(correction=0)) for channel in each)
    scale = 255.0 if images else 1.0
    varies = [spread > ROUNDING * abs(mean) for mean, spread in zip(means, spreads, strict=True)]
    stds = (spread / scale if there else 1.0 for spread, there in zip(spreads, varies, strict=True))
    return tuple(mean / scale for mean in means), tuple(stds)


def _byte_moments(channel: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of bytes, of which few at a time are in memory as anything larger.

    To the bit what PyTorch's `mean` and `std` give in double precision on a CPU: the sum of bytes is exact, and
    squares are summed in the order of memory, one after another, in as many parts as PyTorch has threads.
    """
    ordered = channel.permute(sorted(range(channel.ndim), key=channel.stride, reverse=True)).numpy()
    count, each = ordered.size, ordered[0].size

    def chunks(begin: int, end: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Values of a range of places, in order; whole samples are taken, and cut."""
        step = max(1, AT_ONCE // each)
        for first in range(begin // each, -(-end // each), step):
            values = ordered[first : first + step].reshape(-1)
            yield values[max(0, begin - first * each) : max(0, end - first * each)]

    mean = sum(int(values.sum(dtype=np.int64)) for values in chunks(0, count)) / count
    size = -(-count // min(torch.get_num_threads(), -(-count // GRAIN)))  # of a part
    squares = 0.0
    for begin in range(0, count, size):
        total = 0.0
        for values in chunks(begin, min(begin + size, count)):
            terms = values - mean
            terms *= terms
            terms[0] += total
            total = float(np.add.accumulate(terms, out=terms)[-1])
        squares += total
    return mean, math.sqrt(squares / count)
