"""Image files to pixels, on all cores, into one file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kenyon.data.images import FORMATS, UnfitError, open_image
from kenyon.data.reports import reporter
from kenyon.data.trees import Reader, Tree, Uses
from kenyon.errors import DataError, KenyonError
from kenyon.machine import cores

File = tuple[Tree, str]
Picture = NDArray[np.uint8]  # (H, W) or (H, W, C)
Decode = Callable[[Image.Image], Picture]

TOGETHER = 32  # images handed to a thread at once
AHEAD = 4  # such portions per thread that may wait: what memory has to hold


def require_size(image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise UnfitError(f"has {image.width} x {image.height} pixels, not {width} x {height}")


def fingerprint(trees: Sequence[Tree], uses: Uses) -> str:
    """Changes when files that are used come, go or change in size, and with the text of those that say which image is
    what. Images are not read for it: whether one was written again counts where the tree is `dated`.
    """
    return hashlib.sha256(json.dumps([tree.traits(uses) for tree in trees]).encode()).hexdigest()


def write_equal(file: IO[bytes], files: Sequence[File], decode: Decode, shape: tuple[int, ...], what: str) -> None:
    """Images of one shape, one after the other in the order of `files`, whatever the order they are read in."""
    each = int(np.prod(shape))
    require_room(file, each * len(files))
    for position, picture in pictures(files, decode, what):
        if picture.shape != shape:
            tree, name = files[position]
            raise DataError(f"{tree.where(name)} has the shape {picture.shape}, not {shape}. {tree.remedy}")
        file.seek(position * each)
        file.write(picture.data if picture.flags.c_contiguous else picture.tobytes())


def write_ragged(
    file: IO[bytes], files: Sequence[File], decode: Decode, what: str, least: int = 0
) -> dict[str, list[int]]:
    """Images (H, W, C) of any size, of `least` bytes, one after the other; returns where each starts, in pixels, and
    its size.
    """
    require_room(file, len(files) * least)
    table = {key: [0] * len(files) for key in ("start", "height", "width")}
    start = 0
    for position, picture in pictures(files, decode, what):
        height, width = picture.shape[:2]
        table["start"][position], table["height"][position], table["width"][position] = start, height, width
        start += height * width
        file.write(picture.tobytes())
    return table


def pictures(files: Sequence[File], decode: Decode, what: str) -> Iterator[tuple[int, Picture]]:
    """Each file's position and its image, in the order in which the files read fastest."""
    listener, done = reporter(), 0
    readers = iter(_readers(files))
    threads = cores()
    waiting: deque[Future[list[tuple[int, Picture]]]] = deque()
    listener.progress(what, 0, len(files))
    with ThreadPoolExecutor(threads) as pool:  # Pillow lets go of the interpreter while it decodes
        try:
            while True:
                portion = list(islice(readers, TOGETHER))
                if portion:
                    waiting.append(pool.submit(_decode_portion, portion, decode))
                if not waiting:
                    return
                if not portion or len(waiting) > AHEAD * threads:
                    ready = waiting.popleft().result()
                    yield from ready
                    done += len(ready)
                    listener.progress(what, done, len(files))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _readers(files: Sequence[File]) -> Iterator[tuple[int, File, Reader]]:
    by_tree: dict[int, tuple[Tree, dict[str, int]]] = {}
    for position, (tree, name) in enumerate(files):
        by_tree.setdefault(id(tree), (tree, {}))[1][name] = position
    for tree, positions in by_tree.values():
        for name, read in tree.contents(positions.keys()):
            yield positions[name], (tree, name), read


def _decode_portion(portion: Iterable[tuple[int, File, Reader]], decode: Decode) -> list[tuple[int, Picture]]:
    return [(position, _decode_one(file, read, decode)) for position, file, read in portion]


def _decode_one(file: File, read: Reader, decode: Decode) -> Picture:
    tree, name = file
    content = read()
    try:
        with open_image(content) as image:
            return decode(image)
    except UnfitError as problem:
        raise DataError(f"{tree.where(name)} {problem}. {tree.remedy}") from None
    except (KenyonError, MemoryError):
        raise
    except Exception as problem:  # a damaged file makes Pillow raise almost anything
        reason: object = "it is incomplete" if isinstance(problem, EOFError) else problem
        if isinstance(problem, UnidentifiedImageError):  # whose own words show where it lies in memory
            reason = f"it is none of {', '.join(FORMATS)}" if len(content) else "it is empty"
        raise DataError(f"{tree.where(name)} is not an image that can be read ({reason}). {tree.remedy}") from None


def require_room(file: IO[bytes], needed: int) -> None:
    """Say at once that a disk is too small, rather than after minutes."""
    free = shutil.disk_usage(os.path.dirname(file.name)).free  # noqa: PTH120
    if free < needed:
        raise OSError(None, f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
