"""Streams from folders of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mode
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kenyon.data.arrays import Cut, Domains, from_arrays
from kenyon.data.sources import Source
from kenyon.datasets.cache import cached
from kenyon.datasets.images import File, Picture, as_bytes, fingerprint, write_equal
from kenyon.datasets.trees import Folder
from kenyon.errors import DataError, expected
from kenyon.utils.checks import as_integer
from kenyon.utils.files import as_path

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
TRAIN, TEST, VALIDATION = ("train", "training"), ("test", "testing"), ("val", "valid", "validation")
PURPOSES = frozenset((*TRAIN, *TEST, *VALIDATION))


def from_folder(
    path: Path | str,
    by: Cut | None = None,
    *,
    side: int,
    grey: bool = False,
    test: float = 0.2,
    normalise: bool = True,
    ordered: bool = False,
    name: str | None = None,
) -> Source:
    """Return a source of images in folders: CLASS/image, or DOMAIN/CLASS/image for a stream of domains.

    Above these there may be the folders train, test and val (optional); without them `test` is the share that the
    seed draws. Images are scaled once to `side` x `side` pixels in color, or `grey`, into the cache folder. Else as
    `from_arrays`.
    """
    pixels = as_integer(side)
    if pixels is None or pixels < 1:
        raise expected("side", "a whole number of pixels, at least 1", side)
    images = ImageFiles.of(as_path("path", path))
    parts, folder = images.folders, images.tree.path
    purposes = {place[0].lower() for place in parts if place}
    given = bool(purposes & set(TRAIN)) and bool(purposes & set(TEST)) and purposes <= PURPOSES
    if not given and purposes and purposes <= PURPOSES:
        raise DataError(
            f"{folder} holds {' and '.join(sorted({place[0] for place in parts if place}))}, where train and test "
            "were expected, with or without val. Name its folders so, rename them if they are classes or domains, or "
            "give one of them alone."
        )
    purpose = [place[0].lower() if given else "" for place in parts]
    places = [place[1:] if given else place for place in parts]
    depth = mode(len(place) for place in places)
    odd = next((name for name, place in zip(images.names, places, strict=True) if len(place) != depth), None)
    if odd is not None or depth not in (1, 2):
        raise DataError(
            f"{folder} must hold its images as CLASS/image or DOMAIN/CLASS/image, all alike: "
            f"{odd or images.names[0]} lies otherwise. Move it, or remove it."
        )
    domains = depth == 2
    if domains and by is not None:
        raise DataError(f"{folder} holds domains, which are the tasks. Leave `by` out.")
    return from_arrays(
        images.scaled(pixels, grey),
        [place[-1] for place in places],
        Domains([place[0] for place in places]) if domains else by,
        test=np.isin(purpose, TEST) if given else test,
        validation=np.isin(purpose, VALIDATION) if purposes & set(VALIDATION) and given else None,
        normalise=normalise,
        ordered=ordered,
        name=name or folder.resolve().name,
    )


@dataclass(frozen=True)
class ImageFiles:
    """The images below a folder."""

    tree: Folder
    names: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> ImageFiles:
        tree = Folder(path, "Repair or remove it.", dated=True)
        if not path.is_dir():
            raise DataError(f"There is no folder {path}. Give one with a folder of images for every class.")
        names = tuple(filter(_is_image, tree.names()))
        if not names:
            raise DataError(f"{path} holds no images ({', '.join(SUFFIXES)}).")
        return cls(tree, names)

    @property
    def folders(self) -> list[tuple[str, ...]]:
        """The folders of each image, from the outermost."""
        return [tuple(name.split("/")[:-1]) for name in self.names]

    def scaled(self, side: int, grey: bool = False) -> Tensor:
        """Return the images scaled, (N, C, side, side) uint8; they are decoded once."""
        tree, names = self.tree, list(self.names)
        identity = {"what": "folder", "making": [3, side, grey], "path": str(tree.path.resolve())}
        decoded = cached(
            "folder",
            identity | {"files": fingerprint([tree], _is_image)},
            lambda file: _write(file, tree, names, side, grey),
        )
        return torch.from_numpy(decoded.pixels).view(len(names), side, side, 1 if grey else 3).permute(0, 3, 1, 2)


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _write(file: IO[bytes], tree: Folder, names: list[str], side: int, grey: bool) -> dict[str, Any]:
    def decode(image: Image.Image) -> Picture:
        scaled = as_bytes(image, "L" if grey else "RGB").resize((side, side), Image.Resampling.BILINEAR)
        return np.asarray(scaled).reshape(side, side, -1)

    files: list[File] = [(tree, name) for name in names]
    write_equal(file, files, decode, (side, side, 1 if grey else 3), f"decoding {tree.path.name}")
    return {}
