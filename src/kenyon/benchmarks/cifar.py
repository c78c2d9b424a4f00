"""The three CIFAR benchmarks: random and superclass tasks of small images. The public files are read and checked.

Here and in the files of the other image benchmarks, strengths are those selected in Supplementary Table 6, unless a
comment says otherwise, and `tried` are its grids. Published numbers: CAF on EWC, Supplementary Table 5; the others,
AFEC (NeurIPS 2021), Table 5, on the same splits and networks. Three things in the authors' code are not followed,
since paper and table say otherwise: AF-S of CAF on MAS has equal weights on CIFAR too (definition=authors has that),
AF-2 on MAS counts stability protection twice in training, and rho of AGS-CL has no effect on large images.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from kenyon.benchmarks.registry import benchmark
from kenyon.benchmarks.strengths import complete
from kenyon.data.sources import Group, Source
from kenyon.datasets.archives import CIFAR_10, CIFAR_100, Copy, data_folders, find
from kenyon.datasets.pickles import load_plain_pickle
from kenyon.errors import DataError
from kenyon.models import cifar_cnn
from kenyon.training.regime import Training

PIXELS = 3 * 32 * 32
Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cifar:
    """All images of one dataset, as the arrays of its files: training images, then test images."""

    pixels: tuple[Bytes, ...]  # each (n, 3072), channel by channel
    labels: Labels  # of all images
    test: NDArray[np.bool_]
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Cifar100(Cifar):
    superclasses: tuple[str, ...]
    superclass_of: tuple[int, ...]  # of each class


def read_cifar_10(data: Path | None) -> Cifar:
    copy = find(CIFAR_10, data_folders(data))
    files = _files(copy)
    names = files["batches.meta"].names("label_names", 10)
    train = [files[member] for member in copy.dataset.members if member.startswith("data_batch")]
    test = [files["test_batch"]]
    return Cifar(*_images(train, test, "labels", names), names)


def read_cifar_100(data: Path | None) -> Cifar100:
    files = _files(find(CIFAR_100, data_folders(data)))
    names = files["meta"].names("fine_label_names", 100)
    superclasses = files["meta"].names("coarse_label_names", 20)
    train, test = files["train"], files["test"]
    pixels, labels, is_test = _images([train], [test], "fine_labels", names)
    superclass_of = train.superclasses(len(names), len(superclasses))
    if test.superclasses(len(names), len(superclasses)) != superclass_of:
        test.fail("its 'coarse_labels' do not agree with those of the training images")
    return Cifar100(pixels, labels, is_test, names, superclasses, superclass_of)


def _files(copy: Copy) -> dict[str, _File]:
    return {member: _File(copy, member, content) for member, content in copy.read()}


def _images(
    train: list[_File], test: list[_File], key: str, names: tuple[str, ...]
) -> tuple[tuple[Bytes, ...], Labels, NDArray[np.bool_]]:
    labels = [file.labels(key, len(names)) for file in train + test]
    parts = (("training", train, labels[: len(train)], 2), ("test", test, labels[len(train) :], 1))
    for part, files, theirs, least in parts:
        counts = np.bincount(np.concatenate(theirs), minlength=len(names))
        poor = int(counts.argmin())
        if counts[poor] < least:
            files[-1].fail(f"the class '{names[poor]}' has {counts[poor]} {part} images and needs at least {least}")
    all_labels = np.concatenate(labels)
    is_test = np.arange(len(all_labels)) >= sum(len(file.pixels) for file in train)
    return tuple(file.pixels for file in train + test), all_labels, is_test


class _File:
    """One pickled dictionary of the archive, with every access checked."""

    def __init__(self, copy: Copy, member: str, content: bytes | mmap) -> None:
        self.where = copy.where(member)
        self.remedy = copy.remedy(member)
        table = load_plain_pickle(content, self.where, self.remedy)
        if not isinstance(table, dict):
            self.fail(f"it holds a {type(table).__name__}, where a dictionary was expected")
        self.table = {_text(key): value for key, value in table.items()}

    def fail(self, problem: str) -> NoReturn:
        raise DataError(f"{self.where} is not the file it should be: {problem}. {self.remedy}")

    def value(self, key: str) -> Any:
        if key not in self.table:
            self.fail(f"'{key}' is missing")
        return self.table[key]

    @property
    def pixels(self) -> Bytes:
        data = self.value("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
            self.fail("'data' is not an array of bytes (uint8)")
        if data.ndim != 2 or data.shape[1] != PIXELS:
            self.fail(f"'data' has the shape {data.shape}, where (images, {PIXELS}) was expected")
        return data

    def labels(self, key: str, count: int) -> Labels:
        """Return one label for each image, from 0 to `count` - 1."""
        labels = self.value(key)
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            self.fail(f"'{key}' is not a list of whole numbers")
        if len(labels) != len(self.pixels):
            self.fail(f"'{key}' has {len(labels)} labels for {len(self.pixels)} images")
        if labels and not 0 <= min(labels) <= max(labels) < count:
            self.fail(f"'{key}' runs from {min(labels)} to {max(labels)}, where 0 to {count - 1} was expected")
        return np.array(labels, dtype=np.int64)

    def names(self, key: str, count: int) -> tuple[str, ...]:
        names = self.value(key)
        if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
            self.fail(f"'{key}' is not a list of names")
        texts = tuple(_text(name) for name in names)
        if len(texts) != count or len(set(texts)) != count:
            self.fail(f"'{key}' has {len(set(texts))} different names, where {count} were expected")
        return texts

    def superclasses(self, classes: int, count: int) -> tuple[int, ...]:
        """Return the superclass of each class; all superclasses have the same number of classes."""
        fine, coarse = self.labels("fine_labels", classes), self.labels("coarse_labels", count)
        superclass_of = np.zeros(classes, dtype=np.int64)
        superclass_of[fine] = coarse
        if not np.array_equal(superclass_of[fine], coarse):
            self.fail("images of one class have different 'coarse_labels'")
        sizes = np.bincount(superclass_of, minlength=count)
        if (sizes != classes // count).any():
            self.fail(f"'coarse_labels' do not put {classes // count} classes into each of {count} superclasses")
        return tuple(superclass_of.tolist())


def _text(name: object) -> str:
    # Never fails: a damaged name is only shown.
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


SHAPE = (3, 32, 32)
PER_TASK = 5
# Of CIFAR-100, also for CIFAR-10, so that a stream has one scale. (The authors' code has others for CIFAR-10.)
MEAN = (0.5071, 0.4867, 0.4408)
STD = (0.2675, 0.2565, 0.2761)


# Active forgetting in its published forms: AF-1 decays the heads of later tasks too, on MAS in a single learner from
# the first task on, and AF-2 does not count in the validation loss. lambda_SP of EWC, with and without AF-1, is the
# table's; the authors' scripts have 10000 (r-cifar-10-100: 20000). That of AF-2 on EWC is that of AFEC, whose numbers
# it is compared with. RWalk has that of the scripts.
complete_cifar = partial(complete, af1_heads="open", from_first=True, af2_validated=False)
cifar_benchmark = partial(
    benchmark, backbone=cifar_cnn, width=32, shape=SHAPE, training=Training(), cite="Krizhevsky, Toronto 2009"
)
AF_TRIED = (1e-6, 1e-7, 1e-8, 1e-9)
CPR_TRIED = (0.1, 0.5, 1, 1.5, 3)
GAMMA_TRIED = (0.001, 0.01, 0.02, 0.1)


@cifar_benchmark(
    class_counts=(PER_TASK,) * 20,
    needs=("cifar-100",),
    whole=True,
    hyperparameters=complete_cifar(
        {
            "ewc": {"lambda_sp": 25000},
            "mas": {"lambda_sp": 16},
            "si": {"lambda_sp": 10},
            "rwalk": {"lambda_sp": 128},
            "cpr-ewc": {"lambda_sp": 25000, "lambda_cpr": 1.5},
            "cpr-mas": {"lambda_sp": 16, "lambda_cpr": 1.5},
            "agscl": {"lambda_sp": 3200, "mu": 10, "rho": 0.3},
            "pnc": {"lambda_sp": 50000},
            "ewc-af2": {"lambda_sp": 40000, "lambda_af": 1.0},
            "caf-ewc": {"lambda_sp": 10000, "lambda_af": 1e-8, "gamma": 0.01},
            "caf-mas": {"lambda_sp": 8, "lambda_af": 1e-8, "gamma": 0.02},
        }
    ),
    tried={
        "ewc": {"lambda_sp": (10000, 25000, 50000, 100000)},
        "mas": {"lambda_sp": (4, 8, 16, 32)},
        "si": {"lambda_sp": (4, 6, 8, 10, 16)},
        "agscl": {"lambda_sp": (800, 1600, 3200, 7000), "mu": (2, 5, 10, 20), "rho": (0.1, 0.2, 0.3, 0.5)},
        "pnc": {"lambda_sp": (20000, 50000, 100000, 200000)},
        "cpr-ewc": {"lambda_sp": (10000, 25000, 50000, 100000), "lambda_cpr": CPR_TRIED},
        "cpr-mas": {"lambda_sp": (4, 8, 16, 32), "lambda_cpr": CPR_TRIED},
        "caf-ewc": {"lambda_sp": (10000, 25000), "lambda_af": AF_TRIED, "gamma": GAMMA_TRIED},
        "caf-mas": {"lambda_sp": (8, 16), "lambda_af": AF_TRIED, "gamma": GAMMA_TRIED},
    },
    published={
        "finetune": 28.40,
        "ewc": 51.74,
        "mas": 52.18,
        "si": 51.97,
        "rwalk": 49.62,
        "pnc": 52.88,
        "agscl": 53.19,
        "ewc-af2": 55.24,
        "mas-af2": 54.89,
        "caf-ewc": 57.43,
    },
    published_learners={3: 55.97, 4: 56.84, 5: 57.43, 6: 57.69},
)
def s_cifar_100(data: Path | None = None) -> Source:
    """CIFAR-100, 20 tasks that are its superclasses (fish, flowers, ...) of 5 similar classes each."""
    cifar = read_cifar_100(data)
    members = [np.flatnonzero(np.equal(cifar.superclass_of, s)) for s in range(len(cifar.superclasses))]
    groups = [Group(name, tuple(classes.tolist())) for name, classes in zip(cifar.superclasses, members, strict=True)]
    return _source("s-cifar-100", [cifar], groups)


@cifar_benchmark(
    class_counts=(PER_TASK,) * 20,
    needs=("cifar-100",),
    hyperparameters=complete_cifar(
        {
            "ewc": {"lambda_sp": 25000},
            "mas": {"lambda_sp": 4},
            "si": {"lambda_sp": 10},
            # The best of six values on a separate sequence (`kenyon search`); the 6 of the authors' scripts gives
            # 49.6 % where 66.9 % is published.
            "rwalk": {"lambda_sp": 100},
            "cpr-ewc": {"lambda_sp": 10000, "lambda_cpr": 1.5},
            "cpr-mas": {"lambda_sp": 4, "lambda_cpr": 1.5},
            "agscl": {"lambda_sp": 1600, "mu": 10, "rho": 0.3},
            # The best of six points on a separate sequence, with importances summed as in its own paper. Averaged, as
            # the size of the table's values suggests, they give 68.2 % where 70.2 % is published.
            "pnc": {"lambda_sp": 1000, "decay": 1.0},
            "ewc-af2": {"lambda_sp": 10000, "lambda_af": 1.0},
            # The table selects lambda_SP = 5000, the authors' scripts use 10000: measured here (5 runs,
            # af1_heads=current), 5000 gives 71.6 % and 10000 gives 74.1 %, where 73.3 % is published; 74.8 % with the
            # heads of later tasks.
            "caf-ewc": {"lambda_sp": 10000, "lambda_af": 1e-8, "gamma": 0.02},
            "caf-mas": {"lambda_sp": 4, "lambda_af": 1e-8, "gamma": 0.02},
        }
    ),
    tried={
        "ewc": {"lambda_sp": (5000, 10000, 25000, 50000)},
        "mas": {"lambda_sp": (2, 4, 8, 16)},
        "si": {"lambda_sp": (4, 8, 10, 12, 16)},
        "agscl": {"lambda_sp": (800, 1600, 3200, 7000), "mu": (2, 5, 10, 20), "rho": (0.1, 0.2, 0.3, 0.5)},
        "pnc": {"lambda_sp": (400, 1000, 2500, 6000)},  # ours; the table's 10000 to 100000 are for averages
        "cpr-ewc": {"lambda_sp": (5000, 10000, 25000, 50000), "lambda_cpr": CPR_TRIED},
        "cpr-mas": {"lambda_sp": (2, 4, 8, 16), "lambda_cpr": CPR_TRIED},
        "caf-ewc": {"lambda_sp": (5000, 10000), "lambda_af": AF_TRIED, "gamma": GAMMA_TRIED},
        "caf-mas": {"lambda_sp": (2, 4), "lambda_af": AF_TRIED, "gamma": GAMMA_TRIED},
    },
    published={
        "finetune": 33.53,
        "ewc": 69.18,
        "mas": 69.41,
        "si": 69.21,
        "rwalk": 66.90,
        "pnc": 70.21,
        "agscl": 69.99,
        "ewc-af2": 72.29,
        "mas-af2": 71.20,
        "caf-ewc": 73.27,
    },
    published_learners={3: 72.43, 4: 73.17, 5: 73.27, 6: 73.18},
)
def r_cifar_100(data: Path | None = None) -> Source:
    """CIFAR-100, 20 tasks of 5 classes in alphabetical order: unrelated classes share a task."""
    cifar = read_cifar_100(data)
    return _source("r-cifar-100", [cifar], _consecutive(cifar.names))


@cifar_benchmark(
    class_counts=(PER_TASK,) * 22,
    needs=("cifar-10", "cifar-100"),
    hyperparameters=complete_cifar(
        {
            "ewc": {"lambda_sp": 25000},
            "mas": {"lambda_sp": 4},
            "si": {"lambda_sp": 8},
            "rwalk": {"lambda_sp": 40},
            "cpr-ewc": {"lambda_sp": 25000, "lambda_cpr": 0.5},
            "cpr-mas": {"lambda_sp": 4, "lambda_cpr": 0.2},
            "agscl": {"lambda_sp": 7000, "mu": 20, "rho": 0.2},
            "pnc": {"lambda_sp": 50000},
            "ewc-af2": {"lambda_sp": 25000, "lambda_af": 1.0},
            "caf-ewc": {"lambda_sp": 10000, "lambda_af": 1e-8, "gamma": 0.02},
            "caf-mas": {"lambda_sp": 8, "lambda_af": 1e-8, "gamma": 0.02},
        }
    ),
    tried={
        "ewc": {"lambda_sp": (5000, 10000, 25000, 50000)},
        "mas": {"lambda_sp": (4, 6, 8, 16)},
        "si": {"lambda_sp": (4, 6, 8, 16)},
        "agscl": {"lambda_sp": (1600, 3200, 7000, 10000), "mu": (5, 10, 20, 40), "rho": (0.1, 0.2, 0.3, 0.5)},
        "pnc": {"lambda_sp": (10000, 20000, 50000, 100000)},
        "cpr-ewc": {"lambda_sp": (5000, 10000, 25000, 50000), "lambda_cpr": (0.1, 0.2, 0.5, 1, 1.5)},
        "cpr-mas": {"lambda_sp": (4, 6, 8, 16), "lambda_cpr": (0.1, 0.2, 0.5, 1, 1.5)},
        "caf-ewc": {"lambda_sp": (10000, 25000), "lambda_af": AF_TRIED, "gamma": GAMMA_TRIED},
        "caf-mas": {"lambda_sp": (4, 8), "lambda_af": AF_TRIED, "gamma": (0.0001, 0.01, 0.02, 0.1)},
    },
    published={
        "finetune": 37.81,
        "ewc": 77.75,
        "mas": 77.39,
        "si": 76.69,
        "rwalk": 73.64,
        "pnc": 78.29,
        "agscl": 80.42,
        "ewc-af2": 81.25,
        "mas-af2": 80.01,
        "caf-ewc": 81.21,
    },
    published_learners={3: 80.74, 4: 80.94, 5: 81.21, 6: 81.06},
)
def r_cifar_10_100(data: Path | None = None) -> Source:
    """CIFAR-10 as 2 tasks of many images, always first, then the 20 tasks of r-cifar-100."""
    large, small = read_cifar_10(data), read_cifar_100(data)
    groups = _consecutive(large.names, fixed=True) + _consecutive(small.names, start=len(large.names))
    return _source("r-cifar-10-100", [large, small], groups)


def _consecutive(names: tuple[str, ...], *, start: int = 0, fixed: bool = False) -> list[Group]:
    """Return tasks of consecutive labels; `start` is the position of the first name among the source's classes."""
    return [
        Group(
            f"{names[first]} to {names[first + PER_TASK - 1]}",
            tuple(range(start + first, start + first + PER_TASK)),
            fixed,
        )
        for first in range(0, len(names), PER_TASK)
    ]


def _source(name: str, parts: list[Cifar], groups: list[Group]) -> Source:
    """Return one source of the images of all parts; classes of a part follow those of the previous one."""
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
