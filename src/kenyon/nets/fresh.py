"""First weights, as a pure function of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.nets.parts import rebuilt

M = TypeVar("M", bound=nn.Module)


def seeded(build: Callable[[], M], seed_key: int) -> M:
    """Build a module whose initialisation is drawn from a key, leaving PyTorch's own generator untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_key)
        return build()


def fresh(template: nn.Module, seed_key: int) -> dict[str, Tensor]:
    """The parameters of a module by name, drawn anew by its layers' own reset_parameters()."""

    def build() -> nn.Module:
        module = rebuilt(template, lambda _, t: torch.zeros_like(t, device="cpu"))
        for part in _inside_out(module):
            if (reset := _reset(part)) is not None:
                reset()
        return module

    return {n: p.detach() for n, p in seeded(build, seed_key).named_parameters()}


def check_drawable(backbone: nn.Module) -> None:
    """Every learner's first weights are drawn anew, by the layers' own reset_parameters()."""
    for place, part in backbone.named_modules():
        names = [n for n, p in part.named_parameters(recurse=False) if p.requires_grad]
        if names and _reset(part) is None:
            raise ConfigError(
                f"The backbone's {f'{place}.{names[0]}'.lstrip('.')} belongs to {type(part).__name__}, which has no "
                "reset_parameters(): it cannot be drawn anew for each learner and seed. Give the module such a "
                "method, give a function that builds the backbone (draw=...), or let every learner start from the "
                "weights as they are (start='given')."
            )


def _inside_out(module: nn.Module) -> Iterator[nn.Module]:
    """Modules after those that they contain, once each: as constructors draw them."""
    yield from dict.fromkeys(_walk(module))


def _walk(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _walk(child)
    yield module


def _reset(part: nn.Module) -> Callable[[], None] | None:
    """Attention has its own under another name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(part, name, None)
        if callable(reset):
            return reset
    return None
