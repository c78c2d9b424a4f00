"""What a learner is shown of an image in training and in tests, as values. `kenyon.train.augment` carries them out.

None shows the image as it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crop:
    """A random window of the image's own size, after `padding` black pixels were added on each side."""

    padding: int = 4
    flip: bool = True  # left to right, for every second image


@dataclass(frozen=True)
class ResizedCrop:
    """A random window of random area (a share of the image's) and aspect (width / height), scaled to a square."""

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True


@dataclass(frozen=True)
class CentreCrop:
    """The square in the middle."""

    size: int = 224


Augmentation = Crop | ResizedCrop | None  # in training
Testing = CentreCrop | None  # in tests, and wherever else chance has no place
