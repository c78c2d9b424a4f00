"""Streams from arrays: samples x, labels y, and a cut that divides them into tasks.

    Classes  every task has some of the classes, in the order of their labels
    Groups   every task has the classes that are named for it
    Times    every task is a part of the samples in the order in which they are given
    Domains  every task is a domain: a place, a device, a person, ...

Tasks of classes have a head each. Times and domains have the same classes and share one head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.data.sources import Group, Source
from kenyon.data.tasks import FixedTest, GivenValidation, Heads, Partition, RandomTest, channels, check_pool
from kenyon.errors import DataError, expected, shown
from kenyon.utils.checks import as_integer

Label = int | str


@singledispatch
def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return values as a NumPy array on the CPU."""
    return np.asarray(values)


@to_numpy.register
def _(values: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = values.detach().cpu().numpy()
    return array


def encode_labels(labels: Any, what: str = "labels") -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as numbers from 0, (N,) int64, and their names: numbers by size, strings by the alphabet."""
    array = to_numpy(labels)
    if array.ndim != 1:
        raise DataError(f"{what} must be one a sample, (N,), not of the shape {array.shape}.")
    if len(array) == 0:
        raise DataError(f"There are no {what}, and so no samples.")
    types = set(map(type, array)) if array.dtype == object else {array.dtype.type}
    strings = all(issubclass(kind, str) for kind in types)
    if not strings and not all(issubclass(kind, (Integral, np.bool_)) for kind in types):
        kinds = sorted(kind.__name__ for kind in types) if array.dtype == object else [str(array.dtype)]
        raise DataError(f"{what} must be integers or strings, not {', '.join(kinds)}. Convert them first.")
    names, numbers = np.unique(array.astype(str) if strings else array, return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(str(name) for name in names)


# ---------------------------------------------------------------------- cuts


@dataclass(frozen=True)
class Tasks:
    """The tasks that a cut makes."""

    groups: tuple[Group, ...]
    heads: Heads = "task"
    part: Tensor | None = None  # (N,) int64


@dataclass(frozen=True)
class Classes:
    """Tasks of `each` classes, in the order of their names."""

    each: int = 2

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        each = as_integer(self.each)
        if each is None:
            raise DataError(f"Classes takes the number of classes a task, a whole number, not {shown(self.each)}.")
        if each < 2:
            raise DataError(f"A task needs at least two classes to tell apart, not {each}.")
        if len(names) % each:
            raise DataError(
                f"{len(names)} classes do not make tasks of {each}. Choose another number, or name the classes "
                "of every task with Groups."
            )
        starts = range(0, len(names), each)
        return Tasks(tuple(_group(names, range(start, start + each)) for start in starts))


@dataclass(frozen=True)
class Groups:
    """The labels of every task, in a list or by the name of the task. Samples of other labels are left out."""

    groups: Sequence[Sequence[Label]] | Mapping[str, Sequence[Label]]

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        groups: list[Group] = []
        task_of: dict[str, int] = {}
        for number, (name, group) in enumerate(self._named(), start=1):
            classes = [str(label) for label in group]
            for label in classes:
                if label not in names:
                    raise DataError(f"Task {number} names the class {label}, which no sample has.")
                if label in task_of:
                    raise DataError(f"The class {label} is in task {task_of[label]} and in task {number}.")
                task_of[label] = number
            if len(classes) < 2:
                raise DataError(f"Task {number} has {len(classes)} classes; it needs two or more to tell apart.")
            groups.append(_group(names, [names.index(label) for label in classes], name or ""))
        # Runs train together when their tasks have the same sizes in the same order.
        fixed = len({len(group.classes) for group in groups}) > 1
        return Tasks(tuple(replace(group, fixed=fixed) for group in groups))

    def renamed(self, names: Mapping[str, str]) -> Groups:
        """Return the groups with some labels replaced."""
        groups = [[names.get(str(label), str(label)) for label in group] for _, group in self._named()]
        tasks = [task for task, _ in self._named() if task is not None]
        return Groups(dict(zip(tasks, groups, strict=True)) if tasks else groups)

    def _named(self) -> list[tuple[str | None, Sequence[Label]]]:
        """Return the groups with the names of their tasks, None where they have none."""
        if isinstance(self.groups, Mapping):
            return list(self.groups.items())
        return [(None, group) for group in self.groups]


@dataclass(frozen=True)
class Times:
    """A number of parts of equal length (the first ones may be longer by one), or the boundaries of the parts."""

    parts: int | Sequence[int]

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        edges = self._edges(len(labels))
        part = torch.repeat_interleave(torch.arange(len(edges) - 1), torch.tensor(edges).diff())
        everything = tuple(range(len(names)))
        spans = [f"samples {a} to {b - 1}" for a, b in pairwise(edges)]
        groups = tuple(Group(name, everything, fixed=True, part=p) for p, name in enumerate(spans))
        return Tasks(groups, "shared", part)

    def _edges(self, count: int) -> list[int]:
        """Return where parts of `count` samples begin, and the end of the last."""
        parts = as_integer(self.parts)
        if parts is not None:
            if not 1 <= parts <= count:
                raise DataError(f"{count} samples do not make {parts} parts.")
            sizes = [len(part) for part in np.array_split(np.arange(count), parts)]
            return [0, *np.cumsum(sizes).tolist()]
        try:
            given: Any = self.parts
            edges = [0, *map(as_integer, given), count]
        except TypeError:
            raise DataError(
                f"Times takes a whole number of parts, or a list of boundaries, not {self.parts!r}."
            ) from None
        rising = [edge for edge in edges if edge is not None]
        if len(rising) < len(edges) or any(a >= b for a, b in pairwise(rising)):
            raise DataError(
                f"Boundaries must rise, whole numbers from above 0 to below the {count} samples; these are "
                f"{shown(self.parts)}."
            )
        return rising


@dataclass(frozen=True, eq=False)
class Domains:
    """The domain of every sample, a number or a name. All domains have the same classes."""

    of: Any  # (N,)

    def cut(self, labels: Tensor, names: tuple[str, ...]) -> Tasks:
        part, domains = encode_labels(self.of, "domains")
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


def _group(names: tuple[str, ...], classes: Sequence[int], name: str = "") -> Group:
    return Group(name or ", ".join(names[c] for c in classes), tuple(classes))


# ---------------------------------------------------------------------- sources


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
    """Return a source of labelled samples: NumPy arrays, tensors, or anything that NumPy makes arrays of.

    x: (N, ...). Bytes (uint8) of the shape (N, C, H, W) are images, other integers tokens, floats values of any
        shape.
    y: (N,) integers, bools or strings.
    by: the cut into tasks (`Classes`, `Groups`, `Times`, `Domains`); None: two classes each.
    test: the test samples, (N,) bool, or the share of every task that the seed of a run draws.
    validation: the validation samples, (N,) bool; None: the seed draws the share of the training regime.
    normalise: subtract the mean and divide by the standard deviation of every channel or column, over all samples
        but the test samples (if the seed draws them: over all samples).
    ordered: keep the order of the cut; else the seed shuffles the tasks. Times are ordered anyway.
    classes: names of the classes that y counts from 0; a cut may use names or numbers.
    """
    pool = as_pool(x)
    check_pool(name, pool)
    labels, names = encode_labels(y)
    if classes is not None:
        names = _named(names, classes, name)
        if isinstance(by, Groups):
            by = by.renamed({str(n): str(called) for n, called in enumerate(classes) if str(n) not in classes})
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
    partition: Partition = RandomTest(_share(test)) if tested is None else FixedTest(tested)
    if validation is not None:
        held_out = _mask(validation, len(labels), f"{name}: validation")
        if tested is not None and bool((tested & held_out).any()):
            raise DataError(f"{name}: some samples are for test and for validation. Give each one purpose.")
        partition = GivenValidation(held_out, partition)
    mean, std = moments(pool if tested is None else pool[~tested], normalise)
    rule = partition if tested is None or validation is not None else tested
    return Source(name, pool, labels, rule, names, groups, mean, std, part=tasks.part, heads=tasks.heads)


def _named(numbers: tuple[str, ...], classes: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the names of the classes that samples have."""
    places = [int(number) if number.removeprefix("-").isdigit() else -1 for number in numbers]
    outside = next((number for number, at in zip(numbers, places, strict=True) if not 0 <= at < len(classes)), None)
    if outside is not None:
        raise DataError(
            f"{name}: a sample has the label {outside}, and there are {len(classes)} classes, counted from 0. Leave "
            "out samples without a label."
        )
    return tuple(str(classes[at]) for at in places)


def _share(test: float) -> float:
    if not 0 < test < 1:
        raise DataError(f"test is a share between 0 and 1, or one bool a sample, not {test}.")
    return test


def _mask(given: Any, count: int, what: str) -> Tensor:
    try:
        mask = torch.as_tensor(to_numpy(given))
    except (TypeError, ValueError):
        raise DataError(f"{what} must be {count} bools, one a sample, not {shown(given)}.") from None
    if mask.dtype != torch.bool or mask.shape != (count,):
        raise DataError(f"{what} must be {count} bools, one a sample, not {tuple(mask.shape)} of {mask.dtype}.")
    return mask


# ---------------------------------------------------------------------- pools


def as_pool(x: Any) -> Tensor:
    """Return numbers of any dtype in one of the dtypes of a pool."""
    pool = x.detach().cpu() if isinstance(x, Tensor) else _tensor_of(x)
    if pool.is_complex():
        raise DataError(
            "x has complex numbers. Give their real and imaginary parts, or their absolute values, as numbers of "
            "their own."
        )
    if pool.dtype == torch.uint8:
        return pool
    integers = not pool.is_floating_point() and pool.dtype != torch.bool
    return pool.to(torch.int64 if integers else torch.float32)


def _tensor_of(x: Any) -> Tensor:
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise DataError(f"x makes no array: {error}. Bring all samples to one shape.") from error
    if array.dtype.kind not in "fiubc":
        raise DataError(f"x must be an array of numbers, not of {array.dtype}. Turn its columns into numbers.")
    return as_tensor(array)


def as_tensor(array: npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor over the same memory, if that is contiguous. Read-only memory, such as a mapped
    file, is fine: no code writes to it, and PyTorch would warn.
    """
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writeable(array)))


class _Writeable:
    """The memory of an array, flagged as writeable."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


CHUNK = 2**18  # bytes that are converted to floats at once
GRAIN = 2**15  # the fewest numbers that PyTorch gives to a thread
ROUNDING = 1e-9  # of a mean: a smaller standard deviation counts as 0


def moments(pool: Tensor, normalise: bool = True) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel or column, of pixels scaled to [0, 1]; a constant one has
    standard deviation 1. With normalise=False pixels are only scaled to [0, 1], and values stay; tokens always do.
    """
    images = pool.dtype == torch.uint8
    if pool.dtype == torch.int64 or not (normalise or images):
        return (), ()
    if not normalise:
        return (0.0,) * channels(pool), (1.0,) * channels(pool)
    each = pool.movedim(1, 0)  # channel by channel, since a whole pool in double precision may be large
    if images:
        means, spreads = zip(*map(_byte_moments, each), strict=True)
    else:
        means = tuple(float(channel.mean(dtype=torch.float64)) for channel in each)
        spreads = tuple(float(channel.double().std(correction=0)) for channel in each)
    scale = 255.0 if images else 1.0
    varies = [spread > ROUNDING * abs(mean) for mean, spread in zip(means, spreads, strict=True)]
    stds = (spread / scale if nonzero else 1.0 for spread, nonzero in zip(spreads, varies, strict=True))
    return tuple(mean / scale for mean in means), tuple(stds)


def _byte_moments(channel: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of bytes, converting a chunk at a time.

    Bit-identical to PyTorch's `mean` and `std` in double precision on a CPU: the sum of bytes is exact, and squares
    are summed in the order of memory, one after another, in as many parts as PyTorch has threads.
    """
    ordered = channel.permute(sorted(range(channel.ndim), key=channel.stride, reverse=True)).numpy()
    count, each = ordered.size, ordered[0].size

    def chunks(begin: int, end: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the values of a range of places, in order; whole samples are read, and cut."""
        step = max(1, CHUNK // each)
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
