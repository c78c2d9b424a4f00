"""Initial weights, as a pure function of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from kenyon.backends.torch.generators import UserCode, seeded
from kenyon.backends.torch.module import SplitBackbone, rebuilt
from kenyon.errors import ConfigError

Start = Literal["drawn", "given"]


def initial_parameters(template: nn.Module, seed_key: int) -> dict[str, Tensor]:
    """Draw the parameters of a module from a key by the reset_parameters() of its layers; return them by name."""
    return {n: p.detach() for n, p in seeded(partial(_reset_copy, template), seed_key).named_parameters()}


def _reset_copy(template: nn.Module) -> nn.Module:
    module = rebuilt(template, lambda _, t: torch.zeros_like(t, device="cpu"))
    for part in _children_first(module):
        if (reset := _reset_method(part)) is not None:
            reset()
    return module


class InitialWeights:
    """The initial weights of each learner: drawn from its key, or given and the same for all learners."""

    def __init__(self, parts: SplitBackbone, start: Start, draw: Callable[[], nn.Module] | None) -> None:
        if start not in get_args(Start):
            raise ConfigError(f"start must be drawn or given, not '{start}'.")
        self.template, self.build = parts.template, draw
        self.shapes = {name: value.shape for name, value in parts.trained.items()}
        self.given: dict[str, Tensor] | None = None
        if start == "given":
            missing = next((name for name, value in parts.trained.items() if value.is_meta), None)
            if missing is not None:
                raise ConfigError(
                    f"The backbone's {missing} has no value to start from. Build the module on a real device."
                )
            self.given = {name: value.cpu().clone() for name, value in parts.trained.items()}
        elif draw is None:
            check_drawable(self.template)
        self.code = UserCode("Drawing the backbone's initial weights" if draw is None else "The backbone's function")

    def __call__(self, seed_key: int) -> dict[str, Tensor]:
        """Return the initial weights of one learner by name."""
        return self.draw(seed_key) if self.given is None else self.given

    def draw(self, seed_key: int) -> dict[str, Tensor]:
        """Draw the weights of one learner from a key, even if initial weights are given."""
        build = self.build or partial(_reset_copy, self.template)

        def parameters() -> dict[str, Tensor]:
            return {name: p.detach().cpu() for name, p in build().named_parameters()}

        if self.code.draws is None:
            drawn = self.code.watched(parameters, dict.values, lambda: seed_key)
        else:
            with self.code.generators(lambda: seed_key):
                drawn = parameters()
        if any(name not in drawn or drawn[name].shape != shape for name, shape in self.shapes.items()):
            raise ConfigError(
                "The function that builds the backbone must return a module with the same parameters every time."
            )
        return {name: drawn[name] for name in self.shapes}


def check_drawable(backbone: nn.Module) -> None:
    """Raise an error if a trainable parameter belongs to a module without reset_parameters()."""
    for place, part in backbone.named_modules():
        names = [n for n, p in part.named_parameters(recurse=False) if p.requires_grad]
        if names and _reset_method(part) is None:
            raise ConfigError(
                f"The backbone's {f'{place}.{names[0]}'.lstrip('.')} belongs to {type(part).__name__}, which has no "
                "reset_parameters(): it cannot be drawn for each learner and seed. Give the module such a method, "
                "pass a function that builds the backbone (`Net`: draw=...), or let every learner start from the "
                "weights as they are (start='given')."
            )


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    """Yield every module once, after the modules that it contains: the order in which constructors initialize."""
    yield from dict.fromkeys(_walk(module))


def _walk(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _walk(child)
    yield module


def _reset_method(part: nn.Module) -> Callable[[], None] | None:
    """Return the module's reset_parameters; nn.MultiheadAttention has an underscore before the name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(part, name, None)
        if callable(reset):
            return reset
    return None
