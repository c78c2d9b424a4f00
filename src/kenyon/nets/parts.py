"""What a backbone is made of, whatever module it is.

    trained     parameters that every learner has for itself: they live in the fleet's rows
    constants   frozen parameters (requires_grad=False) and buffers that never change: one copy for all learners
    statistics  what batch normalisation has seen: every learner's own, kept for every task beside its head

Nothing else may change while a backbone computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from kenyon.errors import ConfigError, expected
from kenyon.nets.generators import OwnGenerators
from kenyon.nets.shapes import shapes_through
from kenyon.nets.steps import known_layers


@dataclass(frozen=True)
class Parts:
    template: nn.Module  # without storage, in the mode of training
    trained: dict[str, Tensor]  # as they are in the module that was given
    constants: dict[str, Tensor]  # on the CPU
    statistics: dict[str, Tensor]  # as they are in the module that was given


def take_apart(backbone: nn.Module) -> Parts:
    """A part in eval() inside a module in train() stays so; statistics that are held in this way are constants."""
    if not isinstance(backbone, nn.Module):
        raise expected("The backbone", "a torch.nn.Module that gives a vector for every sample", backbone)
    for place, part in backbone.named_modules():
        if isinstance(part, _BatchNorm) and not part.track_running_stats:
            raise ConfigError(
                f"The backbone's {place or type(part).__name__} normalises by the batch at hand in tests too: a "
                "prediction would depend on the samples beside it. Set track_running_stats=True."
            )
    named = dict(backbone.named_parameters())
    if lazy := next((name for name, p in named.items() if is_lazy(p)), None):
        raise ConfigError(
            f"The backbone's {lazy} has no shape yet. Send a batch through the module once, where it is built."
        )
    trained = {name: p.detach() for name, p in named.items() if p.requires_grad}
    frozen = {name: p.detach() for name, p in named.items() if not p.requires_grad}
    if not trained:
        raise ConfigError(
            "Every parameter of the backbone is frozen. Leave some of them to learn (requires_grad=True)."
            if frozen
            else "The backbone has no parameters: there is nothing to learn but heads. Give it a layer that learns."
        )
    if no_numbers := next((name for name, p in trained.items() if not p.is_floating_point()), None):
        raise ConfigError(
            f"The backbone's {no_numbers} holds complex numbers, and learners' weights are real ones. Keep it as a "
            "real parameter with a last axis of 2, and use torch.view_as_complex where it is needed."
        )
    moving = _moving(backbone)
    buffers = {name: b.detach() for name, b in backbone.named_buffers()}
    constants = frozen | {name: b for name, b in buffers.items() if name not in moving}
    for name, value in constants.items():
        if value.is_meta:
            raise ConfigError(
                f"The backbone's {name} is a constant without a value. Build the module on a real device."
            )
    template = rebuilt(backbone, lambda name, t: torch.empty_like(t, device="meta"))
    template.train()
    for place in _held(backbone):
        template.get_submodule(place).training = False
    return Parts(
        template,
        trained,
        {name: value.cpu().clone() for name, value in constants.items()},
        {name: buffers[name] for name in buffers if name in moving},
    )


def has_constants(backbone: nn.Module) -> bool:
    moving = _moving(backbone)
    frozen = any(not p.requires_grad for p in backbone.parameters())
    return frozen or any(name not in moving for name, _ in backbone.named_buffers())


def rebuilt(module: nn.Module, make: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy of a module with other tensors in the places of its parameters and buffers; what is shared stays so."""
    memo: dict[int, Any] = {}
    for name, p in module.named_parameters():
        memo[id(p)] = nn.Parameter(make(name, p.detach()), requires_grad=p.requires_grad)
    for name, b in module.named_buffers():
        memo[id(b)] = make(name, b.detach())
    try:
        return copy.deepcopy(module, memo)
    except RuntimeError as error:
        raise ConfigError(f"The backbone cannot be copied: {error}") from error


def on_cpu(parts: Parts) -> nn.Module:
    """The module in real memory: constants as they are, all else zeros."""
    values = parts.constants
    return rebuilt(
        parts.template, lambda name, t: values[name].clone() if name in values else torch.zeros_like(t, device="cpu")
    )


def _other_precision(parts: Parts) -> str:
    other = next((p.dtype for p in parts.trained.values() if p.dtype != torch.float32), None)
    return f" Its weights are {_told(other)}: make them float32 first, with .float()." if other else ""


def feature_count(parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many numbers the backbone makes of a sample. Unless its layers are known it is tried out, in real memory:
    shapes on the meta device would import PyTorch's compiler, which is slow.
    """
    if known_layers(parts.template, shape) and dtype.is_floating_point and not _other_precision(parts):
        # Not children(), which leaves out a layer object when it comes a second time.
        *_, last = shapes_through((m for m in parts.template._modules.values() if m is not None), shape)
        if last is not None and len(last) == 1:
            return last[0]
    module, batch = on_cpu(parts), torch.zeros(2, *shape, dtype=dtype)
    before = {name: b.clone() for name, b in module.named_buffers() if name not in parts.statistics}
    try:
        with torch.no_grad(), OwnGenerators(lambda: 0):  # what is drawn does not matter
            features = module(batch)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"The backbone cannot take a batch of the shape {tuple(batch.shape)} ({_told(dtype)}): "
            f"{str(error).rstrip('.')}.{_other_precision(parts)}"
        ) from error
    after = {name: b for name, b in module.named_buffers() if name not in parts.statistics}
    changed = [n for n in before | after if n not in before or n not in after or not torch.equal(before[n], after[n])]
    if changed:
        raise ConfigError(
            f"The backbone's buffer {changed[0]} changes while it computes: it would leak between learners and "
            "tasks. Only the running statistics of nn.BatchNorm may; make it a parameter, or do without it."
        )
    return vectors(features, len(batch)).shape[1]


def vectors(features: Any, batch: int) -> Tensor:
    """What a backbone gives, if it is one feature vector a sample."""
    if isinstance(features, Tensor) and features.ndim == 2 and len(features) == batch:
        return features
    found = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
    raise ConfigError(
        f"A backbone must map a batch to one feature vector a sample; for {batch} samples it gives {found}, not "
        f"({batch}, features). End it with nn.Flatten(), or give back the features alone."
    )


def _held(backbone: nn.Module) -> set[str]:
    """The places of modules that are in eval() while the whole is in train()."""
    return {place for place, part in backbone.named_modules() if backbone.training and not part.training}


def _moving(backbone: nn.Module) -> set[str]:
    """The names of running statistics that are not held."""
    held = _held(backbone)
    return {
        f"{place}.{name}".lstrip(".")
        for place, part in backbone.named_modules()
        if isinstance(part, _NormBase) and place not in held
        for name, _ in part.named_buffers(recurse=False)
    }


def _told(dtype: torch.dtype) -> str:
    return "tokens" if dtype == torch.int64 else str(dtype).removeprefix("torch.")
