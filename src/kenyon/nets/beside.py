"""Runs that are computed in streams of their own, forwards and backwards, between work on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kenyon.threads import in_streams

Params = dict[str, Tensor]
# (run, its parameters by name) -> what it computes of them, and perhaps something that does not depend on them
Work = Callable[[int, Params], tuple[Tensor, Tensor | None]]


def beside(work: Work, params: Params, streams: Sequence[torch.cuda.Stream]) -> tuple[Tensor, Tensor | None]:
    """Both results of every run, (R, ...), from parameters (R, ...) by name, each as `of_run` has it."""
    needed = torch.is_grad_enabled() and any(p.requires_grad for p in params.values())
    return _Beside.apply(work, streams, needed, tuple(params), *params.values())  # type: ignore[no-untyped-call]


def of_run(value: Tensor, run: int) -> Tensor:
    """One run's. Kernels (R, O, h, w, I) become (O, I, h, w) in channels_last memory."""
    return value[run].movedim(-1, 1) if value.ndim == 5 else value[run]


class _Beside(torch.autograd.Function):
    """Keeps the graph of every run, so that its backward pass goes through its stream too."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        streams: Sequence[torch.cuda.Stream],
        needed: bool,
        names: tuple[str, ...],
        *params: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        found: list[tuple[Tensor, Tensor | None]] = []
        leaves: list[Params] = []

        def forwards(run: int) -> None:
            mine = {n: of_run(p.detach(), run).requires_grad_(needed) for n, p in zip(names, params, strict=True)}
            with torch.set_grad_enabled(needed):
                found.append(work(run, mine))
            leaves.append(mine)

        in_streams(forwards, range(len(params[0])), streams)
        if needed:
            ctx.save_for_backward(*params)
            ctx.kept = [x for x, _ in found], leaves, streams
        out = torch.stack([x.detach() for x, _ in found])
        others = [z for _, z in found if z is not None]
        if not others:
            return out, None
        other = torch.stack(others)
        ctx.mark_non_differentiable(other)
        return out, other

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        found, leaves, streams = ctx.kept
        gradients = [torch.empty_like(p) for p in ctx.saved_tensors]

        def backwards(run: int) -> None:
            mine = torch.autograd.grad(found[run], tuple(leaves[run].values()), slope[run])
            torch._foreach_copy_([of_run(g, run) for g in gradients], mine)

        in_streams(backwards, range(len(found)), streams)
        ctx.kept = None
        return (None, None, None, None, *gradients)
