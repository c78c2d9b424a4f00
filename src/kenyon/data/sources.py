"""Sources of labelled samples, and their registry: a source is read once, and each seed cuts its stream from it.

The name of a registered function is the name on the command line (r_cifar_100 -> r-cifar-100):

    @register(class_counts=(2,) * 5, shape=(1, 8, 8))
    def my_data(data: Path | None) -> Source:
        '''One line that `kenyon list benchmarks` shows.'''
        return Source(...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kenyon.data.tasks import (
    NEEDS_VIEW,
    Augmentation,
    FixedTest,
    Heads,
    Partition,
    Pool,
    Split,
    Stream,
    Task,
    Testing,
    channels,
    check_pool,
    equal_sizes,
    holds_images,
)
from kenyon.errors import ConfigError, DataError, unknown


@dataclass(frozen=True)
class Group:
    """The classes of one task, as positions in the class names of the source; `part`: only samples of that part."""

    name: str
    classes: tuple[int, ...]
    fixed: bool = False  # keeps its place, while the seed shuffles the others
    part: int | None = None


class Dealing(Protocol):
    """Tasks whose classes depend on the seed."""

    def __len__(self) -> int: ...

    def deal(self, names: tuple[str, ...], seed: int) -> tuple[Group, ...]: ...


@dataclass(frozen=True)
class ShuffledClasses:
    """A number of tasks of equal size, to which the seed assigns the shuffled classes."""

    tasks: int

    def __len__(self) -> int:
        return self.tasks

    def deal(self, names: tuple[str, ...], seed: int) -> tuple[Group, ...]:
        order = np.random.default_rng([seed, 2]).permutation(len(names)).tolist()
        each = len(names) // self.tasks
        dealt = [tuple(order[first : first + each]) for first in range(0, len(names), each)]
        return tuple(Group(f"{names[classes[0]]} and {each - 1} more", classes, fixed=True) for classes in dealt)


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled samples, and the rule by which each seed cuts a stream of tasks from them."""

    name: str
    images: Pool  # images, or other values
    labels: Tensor  # (N,) int64, into class_names
    test: Tensor | Partition  # (N,) bool, or a rule that draws the test samples of each seed
    class_names: tuple[str, ...]
    groups: tuple[Group, ...] | Dealing  # one per task
    mean: tuple[float, ...] = ()  # see `Stream`; images need it
    std: tuple[float, ...] = ()
    augmentation: Augmentation = None  # view of an image in training
    testing: Testing = None  # view of an image in tests
    # (N,) the origin of a sample (a film, a person), if samples of one origin must stay on one side of a split
    origin: Tensor | None = None
    part: Tensor | None = None  # (N,) int64, the part (a domain, a time) of a sample, if tasks are parts
    heads: Heads = "task"

    def __post_init__(self) -> None:
        check_pool(self.name, self.images)
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{self.name}: {len(self.images)} samples and {len(self.labels)} labels differ in length."
            )
        mask = getattr(self.partition, "test", None)
        for what, values in {"the test mask": mask, "origins": self.origin, "parts": self.part}.items():
            if values is not None and len(values) != len(self.labels):
                raise DataError(f"{self.name}: labels and {what} differ in length.")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise DataError(f"{self.name}: labels must run from 0 to {len(self.class_names) - 1}.")
        if self.testing is None:
            equal_sizes(self.images, NEEDS_VIEW.format(self.name))
        if isinstance(self.groups, ShuffledClasses) and len(self.class_names) % len(self.groups):
            raise DataError(
                f"{self.name}: {len(self.class_names)} classes do not make {len(self.groups)} equal tasks."
            )
        self._check_views()

    def _check_views(self) -> None:
        pool = self.images
        if not holds_images(pool) and (self.augmentation is not None or self.testing is not None):
            raise DataError(
                f"{self.name}: only images (uint8) are shown in windows; leave augmentation and testing out."
            )
        if pool.dtype == torch.int64 and (self.mean or self.std):
            raise DataError(f"{self.name}: tokens have no mean. Leave mean and std out.")
        first = channels(pool)
        wanted = {first} if holds_images(pool) else {0, first}
        if len(self.mean) != len(self.std) or len(self.mean) not in wanted:
            raise DataError(
                f"{self.name}: mean and std need {first} numbers each, one for every channel or column, not "
                f"{len(self.mean)} and {len(self.std)}."
            )
        if any(not spread > 0 for spread in self.std):
            raise DataError(f"{self.name}: every std must be above 0. Leave out columns that are always the same.")

    @property
    def partition(self) -> Partition:
        """The rule that divides the samples of a task."""
        return FixedTest(self.test) if isinstance(self.test, Tensor) else self.test

    def stream(self, seed: int, *, tasks: int | None = None, validation: float = 0.1) -> Stream:
        """Cut the stream of one run: the seed shuffles the tasks, or their classes, and draws the validation sets.

        `tasks`: the number of tasks to keep, the first of the shuffled order. `validation` = 0 holds nothing out.
        """
        if seed < 0:
            raise ConfigError(f"Seeds are 0 or larger, not {seed}.")
        count = len(self.groups) if tasks is None else tasks
        if not 1 <= count <= len(self.groups):
            raise ConfigError(f"{self.name} has {len(self.groups)} tasks; --tasks {count} is not possible.")
        if not 0.0 <= validation < 1.0:
            raise ConfigError(f"validation is the share of held-out samples, between 0 and 1, not {validation}.")
        groups = self.groups.deal(self.class_names, seed) if hasattr(self.groups, "deal") else self.groups
        free = [i for i, group in enumerate(groups) if not group.fixed]
        shuffled = iter(np.random.default_rng([seed, 0]).permutation(free).tolist())
        order = [i if group.fixed else next(shuffled) for i, group in enumerate(groups)][:count]
        return Stream(
            name=self.name,
            seed=seed,
            tasks=tuple(self._task(groups[i], seed, i, validation) for i in order),
            mean=self.mean,
            std=self.std,
            augmentation=self.augmentation,
            testing=self.testing,
            heads=self.heads,
        )

    def _task(self, group: Group, seed: int, position: int, validation: float) -> Task:
        # Classes are renumbered in the order in which the group names them.
        local = torch.full((len(self.class_names),), -1, dtype=torch.long)
        local[list(group.classes)] = torch.arange(len(group.classes))
        labels = local[self.labels]
        chosen = labels >= 0
        if group.part is not None:
            if self.part is None:
                raise DataError(f"{self.name}: task '{group.name}' is a part of a source that has none.")
            chosen &= self.part == group.part
        members = torch.nonzero(chosen).flatten()
        # The draw depends on the task, not on its place in the order.
        rng = np.random.default_rng([seed, 1, position])
        train, held_out, test = self.partition(members, rng, validation)
        if validation > 0 and len(held_out) == 0:
            raise DataError(
                f"Task '{group.name}' has no validation samples. Give it more data, or choose a validation share "
                "that leaves at least one sample on each side."
            )

        def split(index: Tensor) -> Split:
            return Split(self.images, index, labels[index])

        return Task(
            name=group.name,
            classes=tuple(self.class_names[c] for c in group.classes),
            train=split(train),
            validation=split(held_out),
            test=split(test),
        )


Loader = Callable[[Path | None], Source]


@dataclass(frozen=True)
class SourceSpec:
    """The properties of a source that are known without reading its files."""

    name: str
    summary: str
    class_counts: tuple[int, ...]  # of each task
    shape: tuple[int, ...]  # of a sample
    needs: tuple[str, ...]  # datasets that must be on disk, by their names in `kenyon data list`
    whole: bool  # the classes of a task belong together (an alphabet), also in a search
    load: Loader  # takes the user's data folder; None: the default folders
    dtype: torch.dtype = torch.float32  # of a sample at the input of the network; int64 for tokens
    heads: Heads = "task"


SOURCES: dict[str, SourceSpec] = {}


def register(
    *,
    class_counts: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    heads: Heads = "task",
    needs: tuple[str, ...] = (),
    whole: bool = False,
) -> Callable[[Loader], Loader]:
    """Register the decorated function, which reads a source, under its name."""

    def add(load: Loader) -> Loader:
        name = load.__name__.replace("_", "-")
        if name in SOURCES and SOURCES[name].load.__module__ != load.__module__:
            # Results name benchmarks: those of one would pass for those of the other.
            raise ConfigError(f"There is a benchmark {name} already. Give the function {load.__name__} another name.")
        summary = next(iter((inspect.getdoc(load) or "").splitlines()), "")
        about = (name, summary, class_counts, shape, needs, whole)
        SOURCES[name] = SourceSpec(*about, load, dtype=dtype, heads=heads)
        return load

    return add


def register_read(load: Loader, *, whole: bool = False) -> None:
    """Register a source without a declared content: read it now, from the default folders, and keep it."""
    source = load(None)
    stream = source.stream(0, validation=0.0)

    def load_again(data: Path | None) -> Source:
        return source if data is None else load(data)

    load_again.__name__, load_again.__doc__ = load.__name__, load.__doc__ or source.name
    load_again.__module__ = load.__module__
    register(
        class_counts=stream.class_counts,
        shape=stream.input_shape,
        dtype=stream.input_dtype,
        heads=stream.heads,
        whole=whole or source.part is not None,
    )(load_again)


def find_source(name: str) -> SourceSpec:
    """Return the source of that name; raise ConfigError, with the nearest names, if there is none."""
    import_module("kenyon.benchmarks")  # registers the built-in ones
    if name not in SOURCES:
        raise unknown("benchmark", name, SOURCES)
    return SOURCES[name]
