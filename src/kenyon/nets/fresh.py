"""First weights, as a pure function of a key."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError

M = TypeVar("M", bound=nn.Module)


def seeded(build: Callable[[], M], seed_key: int) -> M:
    """Build a module whose initialisation is drawn from a key, leaving PyTorch's own generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_key)
        return build()


def fresh(template: nn.Module, seed_key: int) -> dict[str, Tensor]:
    """The parameters of a module by name, drawn anew by its layers' own reset_parameters()."""

    def build() -> nn.Module:
        module = copy.deepcopy(template).to_empty(device="cpu")
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
        return module

    return {n: p.detach() for n, p in seeded(build, seed_key).named_parameters()}


def check_drawable(backbone: nn.Module) -> None:
    """Every learner's first weights are drawn anew, by the layers' own reset_parameters()."""
    for place, part in backbone.named_modules():
        names = [f"{place}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)]
        if names and not callable(getattr(part, "reset_parameters", None)):
            raise ConfigError(
                f"The backbone's {names[0]} belongs to {type(part).__name__}, which has no reset_parameters(): it "
                "cannot be drawn anew for each learner and seed. Give the module such a method."
            )
