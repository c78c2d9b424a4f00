"""A small model and made-up data for the losses to work on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kenyon.regularizers import Collaborative


def vectors(samples: int, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 4, generator=generator), torch.randint(classes, (samples,), generator=generator)


def batches(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def classifier(seed: int = 0, *, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    """body.0, (body.1), head."""
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(5)] if norm else []
    body = nn.Sequential(nn.Linear(4, 5), *middle, nn.Tanh(), nn.Dropout(dropout))
    model = nn.Sequential()
    model.add_module("body", body)
    model.add_module("head", nn.Linear(5, 3))
    return model


def learners(count: int = 3, tasks: int = 2, seed: int = 0) -> Collaborative:
    torch.manual_seed(seed)
    backbones = [nn.Sequential(nn.Linear(4, 5), nn.Tanh()) for _ in range(count)]
    return Collaborative(backbones, [nn.Linear(5, 3) for _ in range(tasks)])


def moved(model: nn.Module, by: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
