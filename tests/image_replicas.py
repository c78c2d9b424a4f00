"""Miniature replicas of public datasets that come as image files: the same names and layouts, a few small images.

Each writes its dataset's own folder below the one it is given; `pack` makes the public archive of it instead.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from kenyon.datasets.archives import Archive

OMNIGLOT_CHARACTERS = ((2, 3), (1, 2))  # of the first and last alphabet of each part
OMNIGLOT_ALPHABETS = (("Alphabet_of_the_Magi", "Tifinagh"), ("Angelic", "ULOG"))
CUB_CLASSES = [
    "001.Black_footed_Albatross",
    *(f"{i:03d}.Made_up_Bird" for i in range(2, 200)),
    "200.Common_Yellowthroat",
]
WNIDS = [f"n{1_000_000 + 37 * i:08d}" for i in range(200)]


def write_omniglot(folder: Path) -> Path:
    """folder/images_background and folder/images_evaluation."""
    rng, number = np.random.default_rng(0), 1
    for part, alphabets, counts in zip(
        ("images_background", "images_evaluation"), OMNIGLOT_ALPHABETS, OMNIGLOT_CHARACTERS, strict=True
    ):
        for alphabet, count in zip(alphabets, counts, strict=True):
            for character in range(1, count + 1):
                target = folder / part / alphabet / f"character{character:02d}"
                target.mkdir(parents=True)
                for drawer in range(1, 21):
                    ink = np.full((105, 105), 255, np.uint8)
                    x, y = rng.integers(30, 70, 2)
                    ink[y - 20 : y + 20, x - 3 : x + 3] = 0
                    ink[y - 2 : y + 2, x : x + 5 + 4 * character] = 0
                    Image.fromarray(ink).convert("1").save(target / f"{number:04d}_{drawer:02d}.png")
                number += 1
    return folder


def write_cub(folder: Path, per_class: int = 5) -> Path:
    """folder/CUB_200_2011/images; every class has its own colour, and every tenth image is grey."""
    target, rng = folder / "CUB_200_2011" / "images", np.random.default_rng(0)
    for label, name in enumerate(CUB_CLASSES):
        (target / name).mkdir(parents=True)
        for i in range(per_class + label % 2):
            height, width = rng.integers(10, 40, 2)
            image = Image.new("RGB", (int(width), int(height)), (label, 255 - label, 20 * i))
            image = image.convert("L") if label % 10 == 9 else image
            image.save(target / name / f"{name[4:]}_{i:04d}_{rng.integers(10**6)}.jpg")
    (folder / "CUB_200_2011" / "README").write_text("birds")
    return target


def write_tiny_imagenet(folder: Path, train: int = 2, test: int = 1, sorted_folders: bool = False) -> Path:
    """folder/tiny-imagenet-200; red is the class and green the position."""
    target = folder / "tiny-imagenet-200"
    (target / "val").mkdir(parents=True)
    (target / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(WNIDS)))
    words = [f"{wnid}\tthing {i // 2 * 2 if i < 4 else i}, other name\n" for i, wnid in enumerate(WNIDS)]
    (target / "words.txt").write_text("n00000001\tentity\n" + "".join(words))
    annotations = []
    for label, wnid in enumerate(WNIDS):
        images = target / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text("0\t0\t1\t1")
        for i in range(train):
            _small(label, i).save(images / f"{wnid}_{i}.JPEG")
        for i in range(test):
            name = f"val_{(label * 7 + i * 200) % (200 * test)}.JPEG"
            place = target / "val" / (wnid if sorted_folders else "images")
            place.mkdir(exist_ok=True)
            _small(label, 9).save(place / name)
            annotations.append(f"{name}\t{wnid}\t0\t0\t62\t62\n")
    if not sorted_folders:
        (target / "val" / "val_annotations.txt").write_text("".join(annotations))
    (target / "test" / "images").mkdir(parents=True)
    _small(0, 0).save(target / "test" / "images" / "test_0.JPEG")
    return target


def _small(label: int, i: int) -> Image.Image:
    if label == 0:
        return Image.new("L", (64, 64), 10)
    return Image.new("RGB", (64, 64), (label, 10 * i, 0))


def write_core50(folder: Path, frames: int = 2) -> Path:
    """folder/core50_128x128; red is the object and green the session. One film is a frame longer."""
    target = folder / "core50_128x128"
    for session in range(1, 12):
        for thing in range(1, 51):
            place = target / f"s{session}" / f"o{thing}"
            place.mkdir(parents=True)
            for frame in range(frames + (session == 1 and thing == 2)):
                image = Image.new("RGB", (128, 128), (thing, 20 * session, frame))
                image.save(place / f"C_{session:02d}_{thing:02d}_{frame:03d}.png", compress_level=1)
    return target


def pack(unpacked: Path, archive: Archive) -> Path:
    """The public archive of an unpacked folder, in place of that folder."""
    top = Path(archive.folder).parts[0]
    root = next(path for path in (unpacked, *unpacked.parents) if path.name == top)
    target = root.parent / archive.file
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
            for path in sorted(root.rglob("*")):
                packed.write(path, path.relative_to(root.parent))
    else:
        with tarfile.open(target, "w:gz", compresslevel=1) as packed_tar:
            # Not in the order of their names, as in the public archive.
            for path in sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.name[::-1]):
                packed_tar.add(path, path.relative_to(root.parent))
    shutil.rmtree(root)
    return target
