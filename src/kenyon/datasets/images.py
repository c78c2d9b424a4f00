"""Decoding of image files: formats, limits, conversion of unusual pixels, and many files on all cores into one.

The content of a file decides its format, not its name, and only the formats below are tried: some others that Pillow
knows start programs. The limit on pixels applies before any pixel is decoded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from mmap import mmap
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kenyon.datasets.trees import Reader, Tree, Uses
from kenyon.errors import ConfigError, DataError, KenyonError
from kenyon.utils.files import cores
from kenyon.utils.progress import reporter

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MOST_PIXELS = 2**26  # of an image: 8192 x 8192, which takes up to 0.7 GB while it is decoded
VARIABLE = "KENYON_IMAGE_PIXELS"  # in the environment: another such limit
BYTES_A_PIXEL = 8  # of a file: four channels of 16 bits, not compressed
HEADERS = 2**20  # bytes that a file may have besides its pixels
BITS, INK, TILES = 258, 262, (322, 323)  # tags of TIFF: bits of a sample, what 0 means, sides of a tile


class UnfitError(Exception):
    """An image that can be read but not used. The message completes a sentence that begins with its name."""


def most_pixels() -> int:
    """Return the most pixels that an image may have."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return MOST_PIXELS
    if not (given.isascii() and given.isdigit()) or not 0 < int(given) < 2**40:
        raise ConfigError(f"The environment variable {VARIABLE} is a number of pixels, such as {MOST_PIXELS}.")
    return int(given)


@contextmanager
def open_image(content: bytes | mmap, formats: tuple[str, ...] = FORMATS) -> Iterator[Image.Image]:
    """Open an image within the limits; only its header is read. Decode it inside: large images wait for each other,
    so that all threads together never hold more pixels than one image may have.
    """
    limit = most_pixels()
    larger = f"Scale it down, or set the environment variable {VARIABLE} to more"
    if len(content) > limit * BYTES_A_PIXEL + HEADERS:
        raise UnfitError(f"has {len(content):,} bytes, too many for an image of {limit:,} pixels. {larger}")
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise UnfitError(f"has more pixels than the {limit:,} that are read: {problem} {larger}") from None
    with image:
        pixels = max(image.width * image.height, _tile(image))
        if pixels > limit:
            raise UnfitError(f"has {pixels:,} pixels, and at most {limit:,} are read. {larger}")
        # Further frames of a camera's file (MPO) are previews and other views.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise UnfitError("has several frames, and it is not known which is meant. Save one as an image")
        with _BUDGET.room(pixels, limit):
            yield image


def as_bytes(image: Image.Image, mode: Literal["L", "RGB"] | None = None) -> Image.Image:
    """Return an image of bytes: grey (L) or red, green and blue (RGB); None keeps channels of bytes as they are.

    Greys of 16 bits keep their upper eight, which Pillow would saturate. Transparent pixels become white. Pixels of
    32 bits, whole numbers or fractions, are refused: their white value is not known.
    """
    if image.mode in ("I", "F") and not (image.mode == "I" and image.format == "PNG"):  # PNG has at most 16 bits
        kind = "fractions" if image.mode == "F" else "whole numbers of 32 bits or with a sign"
        raise UnfitError(f"has {kind} as pixels, whose white value is not known. Save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _upper_bits(image)
    marked = "transparency" in image.info  # one color, or colors of the palette, are transparent
    if mode is None and image.mode not in ("1", "P", "PA") and not marked:
        return image
    if marked or not {"A", "a"}.isdisjoint(image.getbands()):
        image = _on_white(image)
    wanted = mode or ("L" if image.mode in ("1", "L") else "RGB")
    return image if image.mode == wanted else image.convert(wanted)


def _upper_bits(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS, (16,))
    if "transparency" in image.info or tuple(bits) != (16,):
        what = "a transparent grey of 16 bits" if "transparency" in image.info else f"greys of {bits[0]} bits"
        raise UnfitError(f"has {what}, which are not read. Save it with 8 or 16 bits")
    greys = (np.asarray(image).astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    return Image.fromarray(255 - greys if tags.get(INK) == 0 else greys)  # 0: larger values are darker


def _on_white(image: Image.Image) -> Image.Image:
    grey = image.mode in ("1", "L", "LA", "La")
    layered = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(layered, mask=layered.getchannel("A"))
    return white.convert("L") if grey else white


def _tile(image: Image.Image) -> int:
    """Return the pixels of a tile of a TIFF, which is decoded whole even if the image is smaller; else 0."""
    tags = getattr(image, "tag_v2", {})
    width, height = (tags.get(tag, 0) for tag in TILES)
    return int(width) * int(height)


class _PixelBudget:
    """The pixels that all threads of this process are decoding."""

    def __init__(self) -> None:
        self.pixels, self.changed = 0, threading.Condition()

    @contextmanager
    def room(self, pixels: int, limit: int) -> Iterator[None]:
        """Wait until these and the others are within the limit. A single image never waits."""
        with self.changed:
            self.changed.wait_for(lambda: self.pixels == 0 or self.pixels + pixels <= limit)
            self.pixels += pixels
        try:
            yield
        finally:
            with self.changed:
                self.pixels -= pixels
                self.changed.notify_all()


_BUDGET = _PixelBudget()

File = tuple[Tree, str]
Picture = NDArray[np.uint8]  # (H, W) or (H, W, C)
Decode = Callable[[Image.Image], Picture]

BATCH = 32  # images that a thread decodes at once
AHEAD = 4  # batches per thread that may wait in memory


def require_size(image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise UnfitError(f"has {image.width} x {image.height} pixels, not {width} x {height}")


def fingerprint(trees: Sequence[Tree], uses: Uses) -> str:
    """Return a digest that changes when used files are added, removed or resized, and with the text of files of
    labels. Images are not read; in a `dated` tree their times count too.
    """
    return hashlib.sha256(json.dumps([tree.traits(uses) for tree in trees]).encode()).hexdigest()


def write_equal(file: IO[bytes], files: Sequence[File], decode: Decode, shape: tuple[int, ...], what: str) -> None:
    """Write images of one shape in the order of `files`, whatever the order in which they are read."""
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
    """Write images (H, W, C) of any size, at least `least` bytes each; return the first pixel, height and width of
    each.
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
    """Yield the position and the image of each file, in the order in which files read fastest."""
    listener, done = reporter(), 0
    readers = iter(_readers(files))
    threads = cores()
    waiting: deque[Future[list[tuple[int, Picture]]]] = deque()
    listener.progress(what, 0, len(files))
    with ThreadPoolExecutor(threads) as pool:  # Pillow releases the GIL while it decodes
        try:
            while True:
                batch = list(islice(readers, BATCH))
                if batch:
                    waiting.append(pool.submit(_decode_batch, batch, decode))
                if not waiting:
                    return
                if not batch or len(waiting) > AHEAD * threads:
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


def _decode_batch(batch: Iterable[tuple[int, File, Reader]], decode: Decode) -> list[tuple[int, Picture]]:
    return [(position, _decode_one(file, read, decode)) for position, file, read in batch]


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
    except EOFError:
        reason = "it is incomplete"
    except UnidentifiedImageError:  # whose message shows a memory address
        reason = f"it is none of {', '.join(FORMATS)}" if len(content) else "it is empty"
    except Exception as problem:  # Pillow raises almost anything for a damaged file
        reason = str(problem)
    raise DataError(f"{tree.where(name)} is not an image that can be read ({reason}). {tree.remedy}")


def require_room(file: IO[bytes], needed: int) -> None:
    """Raise OSError now if the disk has too little room, rather than after minutes."""
    free = shutil.disk_usage(os.path.dirname(file.name)).free  # noqa: PTH120
    if free < needed:
        raise OSError(None, f"{needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
