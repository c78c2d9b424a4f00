"""Carry images to a machine without a network, in parts of a size that can be sent.

    python benchmarks/carry.py pack FOLDER PARTS --name cub-200 --side 256  # writes PARTS/cub-200-0.tar.gz, ...
    python benchmarks/carry.py unpack PARTS/*.tar.gz FOLDER  # there: one folder, as it was
    python benchmarks/carry.py cifar-10 FOLDER  # there: its public files, of class folders

`--side` reduces images to that many pixels on their shorter side, stored as WebP of quality 88 under their old names:
readers go by a file's contents. All other files are packed unchanged. The results of CUB-200 were made from 256
pixels.
"""

from __future__ import annotations

import argparse
import io
import pickle
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

IMAGES = {".jpg", ".jpeg", ".png", ".webp"}
# In the order of the public files.
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def content(path: Path, side: int | None) -> bytes:
    """Return the packed contents of a file: an image reduced to `side`, or its bytes."""
    if side is None or path.suffix.lower() not in IMAGES:
        return path.read_bytes()
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = side / min(image.size)
    if scale < 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=88, method=4)
    return file.getvalue()


def portions(folder: Path, side: int | None, room: int) -> Iterator[list[tuple[str, bytes]]]:
    """Yield all files below the folder as lists of (name, content), each as large as a part."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    portion: list[tuple[str, bytes]] = []
    left = room
    with ProcessPoolExecutor() as workers:
        for path, held in zip(files, workers.map(partial(content, side=side), files, chunksize=64), strict=True):
            needs = len(held) + 160  # its header, compressed
            if portion and needs > left:
                yield portion
                portion, left = [], room
            portion.append((path.relative_to(folder).as_posix(), held))
            left -= needs
    if portion:
        yield portion


def pack(folder: Path, parts: Path, name: str, side: int | None, megabytes: int) -> Iterator[Path]:
    parts.mkdir(parents=True, exist_ok=True)
    for number, portion in enumerate(portions(folder, side, megabytes * 2**20 - 2**16)):
        part = parts / f"{name}-{number}.tar.gz"
        with tarfile.open(part, "w:gz", compresslevel=3) as tar:
            for member, held in portion:
                header = tarfile.TarInfo(member)
                header.size = len(held)
                tar.addfile(header, io.BytesIO(held))
        yield part


def unpack(parts: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        with tarfile.open(part) as tar:
            tar.extractall(folder, filter="data")


def pixels(path: Path) -> np.ndarray:
    """Return an image as a row of the public files: all red, then green, then blue."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1).reshape(-1)


def cifar_10(folder: Path) -> None:
    """Make `cifar-10-batches-py` from folders of classes, with equal numbers of each class in every batch."""
    out = folder / "cifar-10-batches-py"
    out.mkdir(exist_ok=True)
    batches = {
        **{f"data_batch_{i + 1}": ("train", slice(i, None, 5)) for i in range(5)},
        "test_batch": ("test", slice(None)),
    }
    with ProcessPoolExecutor() as workers:
        for name, (half, share) in batches.items():
            paths = [
                (p, c) for c, label in enumerate(CLASSES) for p in sorted((folder / half / label).iterdir())[share]
            ]
            rows = np.stack(list(workers.map(pixels, (path for path, _ in paths), chunksize=256)))
            (out / name).write_bytes(pickle.dumps({b"data": rows, b"labels": [c for _, c in paths]}, protocol=4))
    meta = {b"label_names": [label.encode() for label in CLASSES], b"num_cases_per_batch": 10000, b"num_vis": 3072}
    (out / "batches.meta").write_bytes(pickle.dumps(meta, protocol=4))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    packing = tasks.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("parts", type=Path)
    packing.add_argument("--name", required=True)
    packing.add_argument("--side", type=int)
    packing.add_argument("--megabytes", type=int, default=48)
    unpacking = tasks.add_parser("unpack")
    unpacking.add_argument("parts", type=Path, nargs="+")
    unpacking.add_argument("folder", type=Path)
    tasks.add_parser("cifar-10").add_argument("folder", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    asked = arguments()
    if asked.task == "pack":
        for part in pack(asked.folder, asked.parts, asked.name, asked.side, asked.megabytes):
            print(f"{part}: {part.stat().st_size / 2**20:.1f} MB")
    elif asked.task == "unpack":
        unpack(asked.parts, asked.folder)
    else:
        cifar_10(asked.folder)
