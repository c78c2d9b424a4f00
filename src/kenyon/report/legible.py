"""Text that can be read on a colour."""

from __future__ import annotations

from typing import Any

import numpy as np

BRIGHTNESS = (0.3, 0.6, 0.1)  # what red, green and blue add to it, about


def text_on(colour: Any, pale: float = 0.5) -> str:
    """Black on a colour that is brighter than `pale`, of 0 to 1, and white on others."""
    from matplotlib.colors import to_rgb

    return "black" if np.dot(to_rgb(colour), BRIGHTNESS) > pale else "white"
