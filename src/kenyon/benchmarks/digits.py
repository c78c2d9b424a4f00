"""The embedded default: scikit-learn's handwritten digits, nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kenyon.data.sources import Group, Source, register

# Every fifth drawing of a digit, in file order, is for learning and all others for testing: about 72 and 288 a task.
# With few drawings to learn from the tasks are hard enough for methods to differ, and with many to test on it shows.
LEARNED_FROM = 5


@register(class_counts=(2,) * 5, shape=(1, 8, 8))
def digits(data: Path | None = None) -> Source:
    """Handwritten digits of 8x8 pixels, 5 tasks of 2 digits (0/1, 2/3, ...); comes with scikit-learn."""
    return _drawings("digits")


@register(class_counts=(2,) * 5, shape=(1, 8, 8))
def digits_conv(data: Path | None = None) -> Source:
    """The same digits for a small convolutional network, whose maps can be looked at."""
    return _drawings("digits-conv")


def _drawings(name: str) -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    # Ink runs from 0 to 16; scaled to the full range of a byte like any other image.
    images = torch.from_numpy((bunch.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    rank = torch.zeros_like(labels)  # the how-manieth drawing of its digit
    for digit in range(10):
        mine = labels == digit
        rank[mine] = torch.arange(int(mine.sum()))
    return Source(
        name=name,
        images=images,
        labels=labels,
        test=rank % LEARNED_FROM != 0,
        class_names=tuple(str(d) for d in range(10)),
        groups=tuple(Group(f"{d} or {d + 1}", (d, d + 1)) for d in range(0, 10, 2)),
        mean=(0.3053,),
        std=(0.3760,),
    )
