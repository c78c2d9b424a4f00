"""A drawing enlarged to many: turned and shifted a little, as another hand or another moment would have put it.

Everything after the angles is whole numbers, so that every machine makes the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kenyon.random import key, random_words

FINE = 56  # pixels a side of the drawings that are turned; twice those of the images made from them
SIDE = FINE // 2
ONE = 1024  # fixed-point unit of positions and of sine and cosine
WEIGHT = 256  # fixed-point unit of the bilinear weights
SEED = key(0x0D12A3)  # of the angles and shifts: part of the data, the same for every run


def poses(drawings: int, versions: int, degrees: float, pixels: float) -> Tensor:
    """How each version lies, (drawings, versions, 4) int32: cosine, sine and where the centre comes from (x, y).

    Angles are uniform in +-degrees and shifts in +-pixels, both ways. The first version is the drawing itself.
    """
    words = random_words(torch.tensor([SEED]), torch.zeros(1, dtype=torch.long), drawings * versions * 3)
    uniform = (words.view(drawings, versions, 3).numpy() & 0xFFFF) / 32768 - 1  # exact, in [-1, 1)
    uniform[:, 0] = 0
    angle = np.deg2rad(degrees * uniform[..., 0])
    x, y = 2 * pixels * uniform[..., 1], 2 * pixels * uniform[..., 2]
    cos, sin = np.cos(angle), np.sin(angle)
    centre = SIDE  # of a drawing of FINE pixels
    table = np.stack([cos, sin, centre - cos * x - sin * y, centre + sin * x - cos * y], -1)
    return torch.from_numpy(np.rint(ONE * table).astype(np.int32))


def enlarge(drawings: Tensor, lying: Tensor) -> Tensor:
    """Drawings (D, FINE, FINE) uint8 at poses (D, V, 4) as (D, V, SIDE, SIDE) uint8: bilinear, each pixel the mean of
    2 x 2 fine ones, and 0 beyond its edges."""
    D, V = lying.shape[:2]
    # Sums of the 2 x 2 fine pixels around every corner of the fine grid, from corner -1 to corner FINE + 1.
    sheet = torch.nn.functional.pad(drawings, (2, 2, 2, 2)).to(torch.int32)
    rows = sheet[:, 1:] + sheet[:, :-1]
    sums = rows[:, :, 1:] + rows[:, :, :-1]  # (D, FINE + 3, FINE + 3)
    width, last = FINE + 3, (FINE + 1) * ONE - 1
    # Pixel centres of an image, seen from its middle, lie on odd corners of the fine grid.
    odd = torch.arange(1 - SIDE, SIDE, 2, dtype=torch.int32, device=lying.device)
    across, down = odd.view(1, 1, 1, SIDE), odd.view(1, 1, SIDE, 1)
    cos, sin, x, y = (lying[..., i, None, None] for i in range(4))
    at_x = (cos * across + sin * down).add_(x).clamp_(-ONE, last).add_(ONE)
    at_y = (cos * down - sin * across).add_(y).clamp_(-ONE, last).add_(ONE)
    corner = ((at_y >> 10) * width).add_(at_x >> 10).view(D, -1).to(torch.int64)
    right = ((at_x & (ONE - 1)) >> 2).view(D, -1)
    lower = ((at_y & (ONE - 1)) >> 2).view(D, -1)
    flat = sums.reshape(D, -1)

    def row(start: int) -> Tensor:
        left = flat.gather(1, corner + start)
        return flat.gather(1, corner + (start + 1)).sub_(left).mul_(right).add_(left, alpha=WEIGHT)

    upper = row(0)
    total = row(width).sub_(upper).mul_(lower).add_(upper, alpha=WEIGHT)
    # Four pixels under two weights, rounded.
    return ((total + (1 << 17)) >> 18).to(torch.uint8).view(D, V, SIDE, SIDE)
