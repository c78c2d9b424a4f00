"""A batch of K learners in parts that are computed side by side on the cores of a CPU, forwards and backwards.

A part is one learner and some of the samples. Parts are cut by the shape of the batch alone, never by how many cores
there are or what else is computed, and their gradients are added up in order: so every sum rounds alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kenyon.threads import side_by_side

# Samples of a part: few enough that there are four parts for four cores, but not so few that convolutions are slow.
PARTS, FEWEST, MOST = 4, 10, 128


@dataclass(frozen=True)
class Part:
    learner: int
    samples: slice


# (part, its learner's parameters by name) -> features (samples, F)
Features = Callable[[Part, dict[str, Tensor]], Tensor]


def cut(batch: int, learners: int) -> list[Part]:
    size = min(MOST, max(FEWEST, -(-batch * learners // PARTS)))
    return [Part(k, slice(i, min(i + size, batch))) for k in range(learners) for i in range(0, batch, size)]


def apart(features: Features, params: dict[str, Tensor], batch: int, learners: int) -> Tensor:
    """Features (K, B, F), from parameters (K, ...) by name."""
    parts = cut(batch, learners)
    return _Apart.apply(features, parts, tuple(params), *params.values())  # type: ignore[no-untyped-call]


class _Apart(torch.autograd.Function):
    """Keeps the graph of every part, so that the parts of the backward pass go side by side too."""

    @staticmethod
    def forward(ctx: Any, features: Features, parts: list[Part], names: tuple[str, ...], *params: Tensor) -> Tensor:
        needed = any(ctx.needs_input_grad)

        def forwards(part: Part) -> tuple[Tensor, dict[str, Tensor]]:
            mine = {n: p[part.learner].detach().requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                return features(part, mine), mine

        found = side_by_side(forwards, parts)
        if needed:
            ctx.parts, ctx.found = parts, found
        return torch.cat([f.detach() for f, _ in found]).unflatten(0, (parts[-1].learner + 1, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def backwards(number: int) -> tuple[Tensor, ...]:
            part, (features, mine) = ctx.parts[number], ctx.found[number]
            return torch.autograd.grad(features, tuple(mine.values()), slope[part.learner, part.samples])

        gradients = side_by_side(backwards, range(len(ctx.parts)))
        totals: list[tuple[Tensor, ...]] = []  # of each learner
        for part, gradient in zip(ctx.parts, gradients, strict=True):
            if part.learner == len(totals):
                totals.append(gradient)
            else:
                for total, more in zip(totals[-1], gradient, strict=True):
                    total.add_(more)
        ctx.found = None
        return (None, None, None, *(_stacked(each) for each in zip(*totals, strict=True)))


def _stacked(each: tuple[Tensor, ...]) -> Tensor:
    return torch.stack(each) if len(each) > 1 else each[0].unsqueeze(0)
