"""From labelled samples to streams: a source is read once, and each seed cuts its own stream from it.

The sources by name. A function's name is the name on the command line (r_cifar_100 -> r-cifar-100).

To add a dataset, write one file with one decorated function and import it in `kenyon.data`:

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
    Augmentation,
    FixedTest,
    Heads,
    Partition,
    Pool,
    Ragged,
    Split,
    Stream,
    Task,
    Testing,
    channels,
    check_pool,
    holds_images,
)
from kenyon.errors import ConfigError, DataError, unknown


@dataclass(frozen=True)
class Group:
    """The classes of one task, as positions in the source's class names; of these, one `part` or all samples."""

    name: str
    classes: tuple[int, ...]
    fixed: bool = False  # keeps its place; only the others are shuffled by the seed
    part: int | None = None


class Dealing(Protocol):
    """Tasks whose classes the seed decides."""

    def __len__(self) -> int: ...

    def deal(self, names: tuple[str, ...], seed: int) -> tuple[Group, ...]: ...


@dataclass(frozen=True)
class ShuffledClasses:
    """The seed shuffles all classes and deals them out to so many tasks of equal size."""

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
    """Labelled samples before any seed has touched them."""

    name: str
    images: Pool  # of images, or of values of any other kind
    labels: Tensor  # (N,) int64, into class_names
    test: Tensor | Partition  # (N,) bool, or a rule that draws the test samples of each seed
    class_names: tuple[str, ...]
    groups: tuple[Group, ...] | Dealing  # one per task
    mean: tuple[float, ...] = ()  # see `Stream`; images need it
    std: tuple[float, ...] = ()
    augmentation: Augmentation = None  # what training shows of an image
    testing: Testing = None  # what tests show of it
    # (N,) what samples come from (a film, a person), where parts of one are no test of another
    origin: Tensor | None = None
    part: Tensor | None = None  # (N,) int64, which part (a domain, a time) a sample belongs to, where tasks are parts
    heads: Heads = "task"

    def __post_init__(self) -> None:
        check_pool(self.name, self.images)
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{self.name}: {len(self.images)} samples and {len(self.labels)} labels differ in length."
            )
        if isinstance(self.test, Tensor) and len(self.test) != len(self.labels):
            raise DataError(f"{self.name}: labels and the test mask differ in length.")
        if self.origin is not None and len(self.origin) != len(self.labels):
            raise DataError(f"{self.name}: labels and origins differ in length.")
        if self.part is not None and len(self.part) != len(self.labels):
            raise DataError(f"{self.name}: labels and parts differ in length.")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise DataError(f"{self.name}: labels must run from 0 to {len(self.class_names) - 1}.")
        if isinstance(self.images, Ragged) and self.testing is None:
            raise DataError(f"{self.name}: images of unequal sizes need a view that makes them equal (`testing`).")
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
        if isinstance(pool, Tensor) and pool.dtype == torch.int64 and (self.mean or self.std):
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

    def stream(self, seed: int, *, tasks: int | None = None, validation: float = 0.1) -> Stream:
        """Cut the stream of one run: the seed shuffles the tasks, or their classes, and draws the validation sets.

        `tasks` keeps only the first so many tasks of the shuffled order. A validation share of 0 holds nothing out.
        """
        if seed < 0:
            raise ConfigError(f"Seeds are 0 or larger, not {seed}.")
        count = len(self.groups) if tasks is None else tasks
        if not 1 <= count <= len(self.groups):
            raise ConfigError(f"{self.name} has {len(self.groups)} tasks; --tasks {count} is not possible.")
        if not 0.0 <= validation < 1.0:
            raise ConfigError(f"validation is the share of held-out samples, between 0 and 1, not {validation}.")
        groups = self.groups if isinstance(self.groups, tuple) else self.groups.deal(self.class_names, seed)
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
        mine = labels >= 0
        if group.part is not None:
            if self.part is None:
                raise DataError(f"{self.name}: task '{group.name}' is a part of a source that has none.")
            mine &= self.part == group.part
        members = torch.nonzero(mine).flatten()
        # The draw depends on the task itself, not on its place in the order.
        rng = np.random.default_rng([seed, 1, position])
        partition = FixedTest(self.test) if isinstance(self.test, Tensor) else self.test
        train, held_out, test = partition(members, rng, validation)
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
    """What is known of a source without reading its files."""

    name: str
    summary: str
    class_counts: tuple[int, ...]  # of each task
    shape: tuple[int, ...]  # of a sample
    needs: tuple[str, ...]  # datasets that must be on disk, by their name in `kenyon data list`
    whole: bool  # the classes of a task belong together (an alphabet): a search keeps them so
    load: Loader  # takes the user's data folder, or None for the usual places
    dtype: torch.dtype = torch.float32  # of a sample as the network sees it; int64 for tokens
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
    """Make a source of a function that reads it, under the function's name."""

    def add(load: Loader) -> Loader:
        name = load.__name__.replace("_", "-")
        if name in SOURCES and SOURCES[name].load.__module__ != load.__module__:
            # Results know benchmarks by name alone: those of one would be taken for those of the other.
            raise ConfigError(f"There is a benchmark {name} already. Give the function {load.__name__} another name.")
        summary = next(iter((inspect.getdoc(load) or "").splitlines()), "")
        about = (name, summary, class_counts, shape, needs, whole)
        SOURCES[name] = SourceSpec(*about, load, dtype=dtype, heads=heads)
        return load

    return add


def register_read(load: Loader, *, whole: bool = False) -> None:
    """Register a source that says itself what is in it: it is read now, from the usual places, and kept."""
    found = load(None)
    stream = found.stream(0, validation=0.0)

    def kept(data: Path | None) -> Source:
        return found if data is None else load(data)

    kept.__name__, kept.__doc__ = load.__name__, load.__doc__ or found.name
    kept.__module__ = load.__module__
    register(
        class_counts=stream.class_counts,
        shape=stream.input_shape,
        dtype=stream.input_dtype,
        heads=stream.heads,
        whole=whole or found.part is not None,
    )(kept)


def find_source(name: str) -> SourceSpec:
    """The source of that name; otherwise an error that names the nearest ones."""
    import_module("kenyon.benchmarks")  # which registers those that come with Kenyon
    if name not in SOURCES:
        raise unknown("benchmark", name, SOURCES)
    return SOURCES[name]
