"""Convolutions without padding as convolutions with padding, in a larger frame.

Kernels that keep a map's size pad it with zeros. Of a convolution that does not, they compute the same numbers at all
pixels but those at the border, which are then ignored, and more of them behind every further layer. So an image is
laid into a frame, at a place where every pooling meets the windows that it would meet without the frame, and in the
end the part of the last map that is right is cut out. What lies around it has no effect on that part and gets no
gradient from it: layer by layer backwards, gradients are zero at exactly those pixels that are to be ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MULTIPLE = 8  # of the sides of all maps that are convolved
FRAMES = (8, 16, 32, 64)


@dataclass(frozen=True)
class Frame:
    side: int
    offset: int  # of the image in it, from above and from the left
    first: int  # row and column of the last map that is right ...
    size: int  # ... and how many are
    rows: tuple[tuple[int, int], ...]  # the same of what each convolution leaves, before pooling


def frame_of(side: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """The smallest frame for square images and 3x3 convolutions: (padding, whether 2x2 pooling follows) of each.

    None where there is none, and for layers with and without padding in one network. With padding the frame is the
    image: a wider one would show the layers something else than zeros around it.
    """
    paddings = {padding for padding, _ in layers}
    if paddings == {1}:
        return _laid(side, side, 0, layers)
    if paddings != {0}:
        return None
    offsets = range(2 ** sum(pooled for _, pooled in layers))
    places = ((wide, offset) for wide in FRAMES for offset in offsets if offset + side <= wide)
    return next((found for wide, offset in places if (found := _laid(side, wide, offset, layers))), None)


def _laid(side: int, wide: int, offset: int, layers: Sequence[tuple[int, bool]]) -> Frame | None:
    """None where a map's side does not suit the kernels, or a pooling other windows."""
    map, first, size, rows = wide, offset, side, []
    for padding, pooled in layers:
        if map % MULTIPLE:
            return None
        if padding == 0:
            first, size = first + 1, size - 2
        rows.append((first, size))
        if pooled:
            if first % 2:
                return None
            map, first, size = map // 2, first // 2, size // 2
    return Frame(wide, offset, first, size, tuple(rows)) if size > 0 else None
