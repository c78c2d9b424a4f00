"""First weights, as a pure function of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from kenyon.backends.torch.generators import OwnGenerators, UserCode
from kenyon.backends.torch.module import SplitBackbone, rebuilt
from kenyon.errors import ConfigError

M = TypeVar("M", bound=nn.Module)
Start = Literal["drawn", "given"]


def seeded(build: Callable[[], M], seed_key: int) -> M:
    """Build a module whose initialisation is drawn from a key, and not from PyTorch's global generator."""
    with OwnGenerators(lambda: seed_key):
        return build()


def fresh(template: nn.Module, seed_key: int) -> dict[str, Tensor]:
    """The parameters of a module by name, drawn anew from a key by its layers' own reset_parameters()."""
    return {n: p.detach() for n, p in seeded(partial(_redrawn, template), seed_key).named_parameters()}


def _redrawn(template: nn.Module) -> nn.Module:
    module = rebuilt(template, lambda _, t: torch.zeros_like(t, device="cpu"))
    for part in _inside_out(module):
        if (reset := _reset(part)) is not None:
            reset()
    return module


class FirstWeights:
    """Those of every learner: drawn from its key, or the same for all where they are given."""

    def __init__(self, parts: SplitBackbone, start: Start, draw: Callable[[], nn.Module] | None) -> None:
        if start not in get_args(Start):
            raise ConfigError(f"start must be drawn or given, not '{start}'.")
        self.template, self.draw = parts.template, draw
        self.shapes = {name: value.shape for name, value in parts.trained.items()}
        self.given: dict[str, Tensor] | None = None
        if start == "given":
            lost = next((name for name, value in parts.trained.items() if value.is_meta), None)
            if lost is not None:
                raise ConfigError(
                    f"The backbone's {lost} has no value to start from. Build the module on a real device."
                )
            self.given = {name: value.cpu().clone() for name, value in parts.trained.items()}
        elif draw is None:
            check_drawable(self.template)
        self.code = UserCode("Drawing the backbone's first weights" if draw is None else "The backbone's function")

    def __call__(self, seed_key: int) -> dict[str, Tensor]:
        return self.drawn(seed_key) if self.given is None else self.given

    def drawn(self, seed_key: int) -> dict[str, Tensor]:
        build = self.draw or partial(_redrawn, self.template)

        def drawn() -> dict[str, Tensor]:
            return {name: p.detach().cpu() for name, p in build().named_parameters()}

        if self.code.draws is None:
            found = self.code.watched(drawn, dict.values, lambda: seed_key)
        else:
            with self.code.generators(lambda: seed_key):
                found = drawn()
        if any(name not in found or found[name].shape != shape for name, shape in self.shapes.items()):
            raise ConfigError("The function that draws the backbone anew must give one with the same parameters.")
        return {name: found[name] for name in self.shapes}


def check_drawable(backbone: nn.Module) -> None:
    """Every learner's first weights are drawn anew, by the layers' own reset_parameters()."""
    for place, part in backbone.named_modules():
        names = [n for n, p in part.named_parameters(recurse=False) if p.requires_grad]
        if names and _reset(part) is None:
            raise ConfigError(
                f"The backbone's {f'{place}.{names[0]}'.lstrip('.')} belongs to {type(part).__name__}, which has no "
                "reset_parameters(): it cannot be drawn anew for each learner and seed. Give the module such a "
                "method, give a function that builds the backbone in its place (`Net`: draw=...), or let every "
                "learner start from the weights as they are (start='given')."
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
