"""Image files as pixels: which formats are read, which limits hold, and what becomes of unusual pixels.

A file holds an image of one of the formats below, or none, whatever its name ends in: some of the other formats that
Pillow knows start programs. The limit on pixels is applied before any of them is decoded.

Image files to pixels, on all cores, into one file.
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
    """An image that can be read and is not what it should be: what is wrong, to be said behind its name."""


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
    """Open an image that keeps to the limits; only its header has been read. Decode it inside: large images wait for
    each other, so that all threads together never hold more pixels than one image may have.
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
        # The further frames of a camera's file (MPO) are previews and other views.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise UnfitError("has several frames, of which nobody knows which is meant. Save one as an image")
        with _DECODED.room(pixels, limit):
            yield image


def as_bytes(image: Image.Image, mode: Literal["L", "RGB"] | None = None) -> Image.Image:
    """Return an image of bytes: grey (L) or red, green and blue (RGB); None leaves channels of bytes as they are.

    Greys of 16 bits keep their upper eight, which Pillow would saturate. What is transparent shows white paper.
    Pixels of 32 bits, whole numbers or fractions, are refused: nobody knows which of their values is white.
    """
    if image.mode in ("I", "F") and not (image.mode == "I" and image.format == "PNG"):  # PNG has at most 16 bits
        kind = "fractions" if image.mode == "F" else "whole numbers of 32 bits or with a sign"
        raise UnfitError(f"has {kind} as pixels, of which nobody knows which is white. Save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = _upper_bits(image)
    marked = "transparency" in image.info  # one colour, or colours of the palette, stand for nothing
    if mode is None and image.mode not in ("1", "P", "PA") and not marked:
        return image
    if marked or not {"A", "a"}.isdisjoint(image.getbands()):
        image = _on_paper(image)
    wanted = mode or ("L" if image.mode in ("1", "L") else "RGB")
    return image if image.mode == wanted else image.convert(wanted)


def _upper_bits(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(BITS, (16,))
    if "transparency" in image.info or tuple(bits) != (16,):
        what = "a transparent grey of 16 bits" if "transparency" in image.info else f"greys of {bits[0]} bits"
        raise UnfitError(f"has {what}, which are not read. Save it with 8 or 16 bits")
    greys = (np.asarray(image).astype(np.uint16, copy=False) >> 8).astype(np.uint8)
    return Image.fromarray(255 - greys if tags.get(INK) == 0 else greys)  # 0: the more, the darker


def _on_paper(image: Image.Image) -> Image.Image:
    grey = image.mode in ("1", "L", "LA", "La")
    layered = image.convert("RGBA")
    paper = Image.new("RGB", image.size, "white")
    paper.paste(layered, mask=layered.getchannel("A"))
    return paper.convert("L") if grey else paper


def _tile(image: Image.Image) -> int:
    """Pixels of a TIFF's tile, which is decoded whole however small the image is; else 0."""
    tags = getattr(image, "tag_v2", {})
    width, height = (tags.get(tag, 0) for tag in TILES)
    return int(width) * int(height)


class _Decoded:
    """The pixels that are being decoded in this process."""

    def __init__(self) -> None:
        self.pixels, self.changed = 0, threading.Condition()

    @contextmanager
    def room(self, pixels: int, limit: int) -> Iterator[None]:
        """Wait until these are, with the others, no more than the limit. One image alone always has room."""
        with self.changed:
            self.changed.wait_for(lambda: self.pixels == 0 or self.pixels + pixels <= limit)
            self.pixels += pixels
        try:
            yield
        finally:
            with self.changed:
                self.pixels -= pixels
                self.changed.notify_all()


_DECODED = _Decoded()

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
