"""How far the weights moved, beside the accuracy that was reached (Fig. 4g-i).

The figure relates "total parameter changes and average accuracy of all tasks", a point a run. The text does not say
how changes are totalled. Here, over the weights that all tasks share (a head is moved by one task alone):
- `total` is the sum over tasks of |theta_t - theta_{t-1}|, the way that was gone, theta_0 being the first weights. It
  needs the weights after every task (`kenyon run --keep-every-task`);
- `displacement` is |theta_T - theta_0|, how far that way led. It needs the final weights alone.

The accuracy of every task: in the end, and when it had just been learned (Supplementary Fig. 4).

How much the learners' predictions differ, and what each of them is good at (Evaluation Metric; Fig. 3d-f).

Cos = 1 - mean_{i != j} p_i.p_j / (|p_i| |p_j|) and Euc = mean_{i != j} |p_i - p_j|, of the probabilities p_i that the
learners give alone, means over a task's test samples. A learner's expertise is its accuracy minus the learners' mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.experiments.results import Run
from kenyon.metrics import Array, expertise
from kenyon.paper.analyses.model import Model


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


@dataclass(frozen=True)
class PerTask:
    """By place in the order of the run; which task that is, differs between seeds."""

    final: Array  # (T,) per cent
    learned: Array | None  # (T,) just learned; None where tasks were not learned one after another


def per_task(run: Run) -> PerTask:
    """The last row and the diagonal of a run's accuracy matrix."""
    matrix = run.matrix
    return PerTask(matrix[-1], np.diagonal(matrix).copy() if len(matrix) == matrix.shape[1] else None)


def final_accuracy(model: Model) -> Array:
    """(T,) of a model, tested now."""
    return model.evaluation.accuracy[0].double().numpy()


@dataclass(frozen=True)
class Diversity:
    """How far apart the learners' predictions lie, task by task."""

    cosine: Array  # (T,)
    euclidean: Array  # (T,)


@dataclass(frozen=True)
class Expertise:
    """What each learner is good at, task by task."""

    relative: Array  # (T, K) accuracy minus the mean of the learners, in per cent
    accuracy: Array  # (T, K) of each learner alone
    together: Array  # (T,) of all


def diversity(model: Model) -> Diversity:
    """Of a model's learners on its test data (Fig. 3e, f)."""
    _several(model.learners)
    found = model.evaluation
    return Diversity(found.cosine[0].double().numpy(), found.euclidean[0].double().numpy())


def learners_expertise(model: Model) -> Expertise:
    """Of a model's learners on its test data (Fig. 3d)."""
    _several(model.learners)
    found = model.evaluation
    own = found.own_accuracy[0].double().numpy()
    return Expertise(expertise(own), own, found.accuracy[0].double().numpy())


def saved_diversity(run: Run) -> Diversity:
    """As it was measured when the run ended."""
    return Diversity(np.array(run.cosine), np.array(run.euclidean))


def saved_expertise(run: Run) -> Expertise:
    own = np.array(run.own_accuracy)
    return Expertise(expertise(own), own, run.matrix[-1])


def _several(learners: int) -> None:
    if learners < 2:
        raise ConfigError("One learner differs from nobody: diversity and expertise are of several learners.")
