"""Image files as pixels: which formats are read, which limits hold, and what becomes of unusual pixels.

A file holds an image of one of the formats below, or none, whatever its name ends in: some of the other formats that
Pillow knows start programs. The limit on pixels is applied before any of them is decoded.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Literal

import numpy as np
from PIL import Image

from kenyon.errors import ConfigError

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
