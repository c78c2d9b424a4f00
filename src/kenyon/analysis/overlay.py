"""Maps laid over the images they belong to, as small PNG pictures in text."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from kenyon.data.images import as_bytes, open_image
from kenyon.metrics import Array

Pixels = npt.NDArray[np.uint8]
LARGEST = 128  # pixels a side of a picture
OPACITY = 0.5


def picture(image: Pixels) -> Pixels:
    """An image (H, W, C) in colours, no larger than a picture may be."""
    coloured = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
    height, width = coloured.shape[:2]
    shrink = max(1.0, max(height, width) / LARGEST)
    size = (round(width / shrink), round(height / shrink))
    return np.asarray(Image.fromarray(coloured).resize(size, Image.Resampling.LANCZOS) if shrink > 1 else coloured)


def overlay(image: Pixels, heat: Array) -> Pixels:
    """A map (h, w) over an image (H, W, C): from its own lowest to its highest value, stretched to the image."""
    from matplotlib import colormaps

    below = picture(image)
    top = heat.max()
    share = heat / top if top > 0 else np.zeros_like(heat)
    stretched = Image.fromarray(share.astype(np.float32)).resize(below.shape[1::-1], Image.Resampling.BILINEAR)
    colours = colormaps["turbo"](np.clip(np.asarray(stretched), 0, 1))[..., :3]
    mixed = (1 - OPACITY) * below / 255 + OPACITY * colours
    return (255 * mixed).round().astype(np.uint8)


def from_text(text: str) -> Pixels:
    with open_image(base64.b64decode(text), formats=("PNG",)) as image:
        return np.asarray(as_bytes(image, "RGB"))


def as_text(pixels: Pixels) -> str:
    """PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
