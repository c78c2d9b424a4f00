"""Miniature replicas of the public CIFAR files: the same names, keys and pickles, a few images a class.

    folder = write_cifar_100(tmp_path)             # tmp_path/cifar-100-python/{train,test,meta}
    archive = pack(write_cifar_100(tmp_path))      # tmp_path/cifar-100-python.tar.gz instead of the folder

Give `tmp_path` as the data folder. Each class has its own colour, so that a learner can learn something.
`change`, called with each file's name and dictionary before it is written, spoils a file for a test.
"""

from __future__ import annotations

import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Table = dict[bytes, Any]
Change = Callable[[str, Table], None]

CIFAR_10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR_100_NAMES = [f"class_{i:02d}" for i in range(100)]
SUPERCLASS_NAMES = [f"superclass_{i:02d}" for i in range(20)]


def superclass_of(label: int) -> int:
    """Scattered like the real one: neighbouring labels belong to different superclasses."""
    return label * 7 % 20


def write_cifar_100(
    folder: Path,
    per_class_train: int = 4,
    per_class_test: int = 2,
    rng: np.random.Generator | None = None,
    change: Change | None = None,
) -> Path:
    """Write folder/cifar-100-python and return its path."""
    rng = rng or np.random.default_rng(0)
    target = folder / "cifar-100-python"
    meta = {b"fine_label_names": _encoded(CIFAR_100_NAMES), b"coarse_label_names": _encoded(SUPERCLASS_NAMES)}
    _write(target / "meta", meta, change)
    for name, per_class in (("train", per_class_train), ("test", per_class_test)):
        labels = rng.permutation(np.repeat(np.arange(100), per_class)).tolist()
        table = {
            b"filenames": [f"{label}_{i}.png".encode() for i, label in enumerate(labels)],
            b"batch_label": f"{name}ing batch 1 of 1".encode(),
            b"fine_labels": labels,
            b"coarse_labels": [superclass_of(label) for label in labels],
            b"data": _pixels(labels, rng),
        }
        _write(target / name, table, change)
    return target


def write_cifar_10(
    folder: Path,
    per_class_train: int = 10,
    per_class_test: int = 2,
    rng: np.random.Generator | None = None,
    change: Change | None = None,
) -> Path:
    """Write folder/cifar-10-batches-py and return its path. Training images are spread over five files."""
    rng = rng or np.random.default_rng(0)
    target = folder / "cifar-10-batches-py"
    meta = {b"num_cases_per_batch": 10000, b"label_names": _encoded(CIFAR_10_NAMES), b"num_vis": 3072}
    _write(target / "batches.meta", meta, change)
    train = rng.permutation(np.repeat(np.arange(10), per_class_train))
    test = rng.permutation(np.repeat(np.arange(10), per_class_test))
    batches = [(f"data_batch_{i + 1}", labels) for i, labels in enumerate(np.array_split(train, 5))]
    for name, labels in [*batches, ("test_batch", test)]:
        table = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": _pixels(labels.tolist(), rng),
            b"filenames": [f"{label}.png".encode() for label in labels],
        }
        _write(target / name, table, change)
    return target


def pack(unpacked: Path) -> Path:
    """Turn an unpacked replica into its .tar.gz beside it; the folder is removed."""
    stem = {"cifar-100-python": "cifar-100-python", "cifar-10-batches-py": "cifar-10-python"}[unpacked.name]
    archive = unpacked.parent / f"{stem}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(unpacked, arcname=unpacked.name)
    shutil.rmtree(unpacked)
    return archive


def _encoded(names: list[str]) -> list[bytes]:
    return [name.encode() for name in names]


def _pixels(labels: list[int], rng: np.random.Generator) -> np.ndarray:
    colours = np.random.default_rng(1).integers(60, 196, (100, 3))  # the same for every file
    images = np.repeat(colours[labels], 32 * 32, axis=1) + rng.integers(-60, 60, (len(labels), 3072))
    return images.astype(np.uint8)


def _write(path: Path, table: Table, change: Change | None) -> None:
    if change is not None:
        change(path.name, table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(table, protocol=2))
