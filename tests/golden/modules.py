"""Small networks of every kind, and data that they take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.golden.workbench import clouds, noise


def convolutions(width: int = 4, learners: int = 1) -> nn.Module:
    torch.manual_seed(1)  # matters where first weights are those given
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, 16), nn.ReLU(),
    )  # fmt: skip


def signals(width: int = 4, learners: int = 1) -> nn.Module:
    """One-dimensional convolutions."""
    first = nn.Conv1d(3, width, 5, padding=2)
    return nn.Sequential(first, nn.ReLU(), nn.AvgPool1d(4), nn.Flatten(), nn.Linear(6 * width, 8))


def frozen(width: int = 4, learners: int = 1) -> nn.Module:
    """A pretrained layer that stays, and layers that learn."""
    module = convolutions(width, learners)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith("0."))
    return module


class Residual(nn.Module):
    """Convolutions with batch normalization beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) -> (B, width)
        x = self.norm1(self.first(x)).relu()
        return (x + self.norm2(self.second(x))).relu().mean((2, 3))


def residual(width: int = 4, learners: int = 1) -> nn.Module:
    return Residual(width)


class Attention(nn.Module):
    """One layer of a transformer, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(8, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # (B, 4, 8) -> (B, width)
        return self.layer(self.project(x)).mean(1)


def transformer(width: int = 8, learners: int = 1) -> nn.Module:
    return Attention(2 * max(1, width // 2))


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(24, 5), nn.LSTM(5, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # tokens (B, L) -> (B, width)
        return self.lstm(self.embed(x))[0][:, -1]


def recurrent(width: int = 6, learners: int = 1) -> nn.Module:
    return Recurrent(width)


def tokens(task: int) -> tuple[Any, Any]:
    y = np.arange(96) % 2
    return (np.abs(noise(96, 7, seed=task)) * 15).astype(np.int64) + 8 * y[:, None], y + 2 * task


Data = Callable[[int], tuple[Any, Any]]

# By name: what makes the backbone (None: that of the estimator), and samples and labels of a task.
MODULES: dict[str, tuple[Callable[[], nn.Module] | None, Data]] = {
    "mlp": (None, lambda task: clouds(task, 6, size=96)),
    "cnn": (convolutions, lambda task: clouds(task, 3, 8, 8, size=96)),
    "frozen": (frozen, lambda task: clouds(task, 3, 8, 8, size=96)),
    "resnet": (residual, lambda task: clouds(task, 3, 8, 8, size=96)),
    "transformer": (partial(transformer, 8), lambda task: clouds(task, 4, 8, size=96)),
    "lstm": (recurrent, tokens),
}
