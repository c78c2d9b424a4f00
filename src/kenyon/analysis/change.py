"""How far the weights moved, beside the accuracy that was reached (Fig. 4g-i).

The figure relates "total parameter changes and average accuracy of all tasks", a point a run. The text does not say
how changes are totalled. Here, over the weights that all tasks share (a head is moved by one task alone):
- `total` is the sum over tasks of |theta_t - theta_{t-1}|, the way that was gone, theta_0 being the first weights. It
  needs the weights after every task (`kenyon run --keep-every-task`);
- `displacement` is |theta_T - theta_0|, how far that way led. It needs the final weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.analysis.model import Model
from kenyon.metrics import Array


@dataclass(frozen=True)
class Change:
    """How far the weights that all tasks share have moved."""

    displacement: float
    per_task: Array | None  # (T,) |theta_t - theta_{t-1}|; None where the weights in between were not kept
    total: float | None  # their sum
    weights: int  # how many numbers moved


def change(model: Model, after: Sequence[Tensor] | None = None) -> Change:
    """`after`: the rows (M, P) after every task, the last one included, of a model that is in no results folder."""
    first = model.initial()
    displacement = distance(model, first, model.rows)
    shared = model.net.layout.protected * len(model.rows)
    if after is None and not _kept(model):
        return Change(displacement, None, None, shared)
    steps, before = [], first
    for task in model.tasks:
        now = after[task].to(first) if after is not None else model.after(task + 1)
        steps.append(distance(model, before, now))
        before = now
    per_task = torch.tensor(steps, dtype=torch.float64)
    return Change(displacement, per_task.numpy(), float(per_task.sum()), shared)


def distance(model: Model, one: Tensor, other: Tensor) -> float:
    """Euclidean, over what all tasks share."""
    shared = slice(0, model.net.layout.protected)
    return float((one[:, shared] - other[:, shared]).double().norm())


def _kept(model: Model) -> bool:
    """Whether the weights after every task lie beside the final ones."""
    return model.saved is not None and model.saved.has_every_task(model.seed)
