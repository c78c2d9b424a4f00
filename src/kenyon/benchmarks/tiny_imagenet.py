"""Tiny-ImageNet: 200 kinds of things in 64 x 64 colour pixels, in 10 tasks of 20 that the seed draws."""

from __future__ import annotations

from pathlib import Path
from statistics import mode
from typing import IO, Any

import numpy as np
import torch
from PIL import Image

from kenyon.benchmarks.cub import LARGE_FORMS, LARGE_IMAGES
from kenyon.benchmarks.registry import benchmark
from kenyon.benchmarks.strengths import complete
from kenyon.data.sources import ShuffledClasses, Source
from kenyon.data.tasks import Crop
from kenyon.datasets.archives import TINY_IMAGENET, Copy, data_folders, find
from kenyon.datasets.cache import cached
from kenyon.datasets.images import File, Picture, as_bytes, fingerprint, write_equal
from kenyon.datasets.trees import Tree, read_text
from kenyon.errors import DataError
from kenyon.models import alexnet

CLASSES, TASKS, SIDE = 200, 10, 64
# Those of ImageNet.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
ANNOTATIONS = "val/val_annotations.txt"


@benchmark(
    backbone=alexnet,
    width=64,
    training=LARGE_IMAGES,
    class_counts=(CLASSES // TASKS,) * TASKS,
    shape=(3, SIDE, SIDE),
    needs=("tiny-imagenet",),
    hyperparameters=complete(
        {
            "ewc": {"lambda_sp": 40},
            "mas": {"lambda_sp": 0.5},
            "si": {"lambda_sp": 0.8},
            "rwalk": {"lambda_sp": 5},  # of the authors' scripts
            "cpr-ewc": {"lambda_sp": 40, "lambda_cpr": 0.5},
            "cpr-mas": {"lambda_sp": 0.5, "lambda_cpr": 0.01},  # lambda_cpr of the scripts: the table selects none
            "agscl": {"lambda_sp": 0.1, "mu": 1e-3, "rho": 0.1},
            "pnc": {"lambda_sp": 80},
            "caf-ewc": {"lambda_sp": 320, "lambda_af": 1e-4, "gamma": 0.001},  # lambda_af: the scripts have 1e-7
            "caf-mas": {"lambda_sp": 0.5, "lambda_af": 1e-8, "gamma": 0.001},
        },
        **LARGE_FORMS,
    ),
    tried={
        "ewc": {"lambda_sp": (20, 40, 160)},
        "mas": {"lambda_sp": (0.1, 0.2, 0.5, 1, 2)},
        "si": {"lambda_sp": (0.4, 0.8, 1.6, 3.2)},
        "agscl": {
            "lambda_sp": (0.01, 0.1, 1, 10, 100),
            "mu": (0.0001, 0.001, 0.01, 0.1),
            "rho": (0.05, 0.1, 0.2, 0.5),
        },
        "pnc": {"lambda_sp": (40, 80, 160, 320)},
        "cpr-ewc": {"lambda_sp": (20, 40, 80, 160), "lambda_cpr": (0.1, 0.2, 0.5, 1)},
        "cpr-mas": {"lambda_sp": (0.1, 0.2, 0.5, 1, 2), "lambda_cpr": (0.1, 0.2, 0.5, 1, 2)},
        "caf-ewc": {
            "lambda_sp": (40, 80, 160, 320),
            "lambda_af": (1e-3, 1e-4, 1e-5, 1e-6),
            "gamma": (0.0001, 0.001, 0.01, 0.1),
        },
        "caf-mas": {
            "lambda_sp": (0.5, 1),
            "lambda_af": (1e-5, 1e-6, 1e-7, 1e-8),
            "gamma": (0.0001, 0.001, 0.01, 0.1),
        },
    },
    published={"caf-ewc": 53.85},
    published_learners={3: 52.56, 4: 53.05, 5: 53.85, 6: 54.03, 7: 54.63, 8: 54.30},
    cite="Le and Yang, Stanford 2015",
)
def tiny_imagenet(data: Path | None = None) -> Source:
    """200 classes of ImageNet in 64 x 64 pixels, dealt by the seed to 10 tasks; its validation folder tests."""
    copy = find(TINY_IMAGENET, data_folders(data))
    identity = {"what": "tiny-imagenet", "making": [1, SIDE], "files": fingerprint(copy.trees, _is_used)}
    found = cached("tiny-imagenet", identity, lambda file: _build(file, copy))
    names, counts = found.facts["names"], found.facts["counts"]
    label = torch.arange(len(names))
    return Source(
        name="tiny-imagenet",
        images=torch.from_numpy(found.pixels).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2),
        labels=torch.cat([label.repeat_interleave(count) for count in counts]),
        test=torch.arange(len(names) * sum(counts)) >= len(names) * counts[0],
        class_names=tuple(names),
        groups=ShuffledClasses(TASKS),
        mean=MEAN,
        std=STD,
        augmentation=Crop(padding=4, flip=True),
    )


def _build(file: IO[bytes], copy: Copy) -> dict[str, Any]:
    [tree] = copy.trees
    classes = sorted(read_text(tree, "wnids.txt").split())
    if len(set(classes)) != CLASSES:
        raise DataError(f"{tree.where('wnids.txt')} names {len(set(classes))} classes, not {CLASSES}. {tree.remedy}")
    inside = tree.names()
    train, test = _train(tree, inside), _test(tree, inside)
    counts = [_count(tree, part, classes, folder) for part, folder in ((train, "train"), (test, "val"))]
    files: list[File] = [(tree, name) for part in (train, test) for wnid in classes for name in part[wnid]]
    write_equal(file, files, _decode, (SIDE, SIDE, 3), "decoding tiny-imagenet")
    return {"names": _names(tree, inside, classes), "counts": counts}


def _train(tree: Tree, inside: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in inside:
        parts = name.split("/")
        if parts[0] == "train" and len(parts) > 2 and _is_image(name):
            found.setdefault(parts[1], []).append(name)
    return found


def _test(tree: Tree, inside: list[str]) -> dict[str, list[str]]:
    """Read val/images with its annotations, or folders of classes, into which it is often sorted."""
    class_of: dict[str, str] = {}
    if ANNOTATIONS in inside:
        rows = [line.split("\t") for line in read_text(tree, ANNOTATIONS).splitlines() if line.strip()]
        if any(len(row) < 2 for row in rows):
            raise DataError(f"{tree.where(ANNOTATIONS)} has lines without a tab and a class. {tree.remedy}")
        class_of = {row[0]: row[1] for row in rows}
    images = [name for name in inside if name.startswith("val/") and name.count("/") > 1 and _is_image(name)]
    together = [name.startswith("val/images/") for name in images]
    if any(together) and not all(together):
        raise DataError(
            f"{tree.where('val')} has its images twice: in val/images, and sorted into folders of classes. Remove "
            "one of the two."
        )
    if any(together) and ANNOTATIONS not in inside:
        raise DataError(f"{tree.where(ANNOTATIONS)} is missing. {tree.remedy}")
    found: dict[str, list[str]] = {}
    for name in images:
        parts = name.split("/")
        wnid = class_of.get(parts[-1]) if parts[1] == "images" else parts[1]
        if wnid is None:
            raise DataError(f"{tree.where(name)} has no line in {ANNOTATIONS}. {tree.remedy}")
        found.setdefault(wnid, []).append(name)
    return found


def _count(tree: Tree, part: dict[str, list[str]], classes: list[str], folder: str) -> int:
    """Return the number of images of a class. It is the same for all: otherwise the copy is incomplete."""
    strange = sorted(set(part) - set(classes))
    if strange:
        raise DataError(f"{tree.where(folder)} has images of {strange[0]}, which wnids.txt lacks. {tree.remedy}")
    numbers = [len(part.get(wnid, ())) for wnid in classes]
    usual = max(1, mode(numbers))
    for wnid, number in zip(classes, numbers, strict=True):
        if number != usual:
            problem = "the copy is incomplete" if number < usual else "some are no part of the dataset"
            raise DataError(
                f"{tree.where(folder)} has {number} images of the class {wnid}, where others have {usual}: "
                f"{problem}. {tree.remedy}"
            )
    return usual


def _names(tree: Tree, inside: list[str], classes: list[str]) -> list[str]:
    """Return the first word for each class from words.txt, with the class's number where words are equal."""
    lines = read_text(tree, "words.txt").splitlines() if "words.txt" in inside else []
    words = {wnid: text.split(",")[0].strip() for wnid, _, text in (line.partition("\t") for line in lines)}
    names = [words.get(wnid) or wnid for wnid in classes]
    return [name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, classes, strict=True)]


def _is_used(name: str) -> bool:
    return name in ("wnids.txt", "words.txt", ANNOTATIONS) or (
        name.startswith(("train/", "val/")) and _is_image(name)
    )


def _is_image(name: str) -> bool:
    return name.lower().endswith((".jpeg", ".jpg", ".png"))


def _decode(image: Image.Image) -> Picture:
    return np.asarray(as_bytes(image, "RGB"))  # some are grey
