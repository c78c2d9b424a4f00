"""Discrepancy of tasks: the test error of one dense layer that discriminates their features (Fig. 4a-c).

The paper trains "a simple discriminator consisting of a fully-connected layer" and takes its binary cross-entropy on
test data; the larger the error, the smaller the difference. Choices where the text is silent:
- features are the inputs of the heads, the sum of the learners' vectors (concatenated for independent networks),
  without dropout and without task gates, which would reveal the task; also every learner's own vector, whose
  discriminators are averaged, as Proposition 1 is about one learner's parameter space;
- every pair of tasks has its discriminator, like the terms Div(D_i, D_j) of Proposition 1; `against="rest"` has one
  per task, that task or any other, which is another reading of the caption of Fig. 4;
- features are standardized with the mean and deviation of all training features, so that a rate means the same for
  every network; both sides weigh one half, whatever their sizes;
- training is full-batch Adam from zero with a fixed number of steps. The problem is convex, so nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import combinations
from math import log
from operator import itemgetter
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.optimizers import BETA1, BETA2, EPSILON
from kenyon.errors import ConfigError
from kenyon.experiments.results import Result
from kenyon.methods import find_method
from kenyon.metrics import Array
from kenyon.paper.analyses.analysis import (
    Analysis,
    Case,
    Compared,
    Runs,
    Values,
    bar_of,
    count_text,
    mean_line,
    places,
    stacked,
)
from kenyon.paper.analyses.model import Model, Probe, thinned
from kenyon.utils.views import View, bars, heatmap, lines


@dataclass(frozen=True)
class DiscrepancySettings:
    """`against` "pairs": a discriminator for every pair of tasks; "rest": one per task, against all others."""

    against: Literal["pairs", "rest"] = "pairs"
    steps: int = 200
    rate: float = 0.01
    samples: int = 0  # of each task, for training and for testing; 0: all

    def __post_init__(self) -> None:
        if self.against not in ("pairs", "rest"):
            raise ConfigError(f"against must be pairs or rest, not '{self.against}'.")
        if self.steps < 1 or self.rate <= 0 or self.samples < 0:
            raise ConfigError("A discriminator needs at least one step, a positive rate and no negative samples.")


@dataclass(frozen=True)
class Discrepancy:
    """Test errors of D discriminators of tasks."""

    sides: tuple[tuple[int, ...], ...]  # (D, T) 1: the one side, -1: the other, 0: takes no part
    error: Array  # (D,) binary cross-entropy on test data, in nats: log 2 is chance, 0 is separated
    wrong: Array  # (D,) share of test samples on the wrong side, in per cent; both sides weigh one half
    mean_error: float
    own_error: float  # the mean error by each learner's own vector, averaged over learners


def discrepancy(model: Model, settings: DiscrepancySettings | None = None) -> Discrepancy:
    """Train a dense layer for every discriminator on training features, and test it (Fig. 4a-c)."""
    s = settings or DiscrepancySettings()
    if len(model.tasks) < 2:
        raise ConfigError("Discrepancy needs two tasks, and this model has one. Analyse a model of several tasks.")
    if model.answers == "per task":
        raise ConfigError("Discrepancy needs features that tasks share, and here every task has its own network.")
    train, test = (task_vectors(model, part, s.samples) for part in ("train", "test"))
    sides = contests(len(model.tasks), s.against)

    def discriminated(features: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        learned, held_out = ((features(vectors), task) for vectors, task in (train, test))
        return discriminate(learned, held_out, sides, steps=s.steps, rate=s.rate)

    error, wrong = discriminated(head_inputs)
    learners = [(m, k) for m in range(len(model.rows)) for k in range(model.net.learners)]
    own = [discriminated(itemgetter(learner))[0] for learner in learners] if len(learners) > 1 else [error]
    table = tuple(tuple(int(v) for v in row) for row in sides.tolist())
    values = error.double().cpu().numpy()
    return Discrepancy(
        table, values, wrong.double().cpu().numpy(), float(values.mean()), float(torch.stack(own).mean())
    )


def contests(tasks: int, against: str = "pairs") -> Tensor:
    """Return the side of every task in each discriminator, (D, T)."""
    if against == "rest":
        return 2 * torch.eye(tasks, dtype=torch.long) - 1
    sides = torch.zeros(tasks * (tasks - 1) // 2, tasks, dtype=torch.long)
    for row, (one, other) in zip(sides, combinations(range(tasks), 2), strict=True):
        row[one], row[other] = 1, -1
    return sides


def task_vectors(model: Model, part: str, most: int) -> tuple[Tensor, Tensor]:
    """Return the learners' vectors for samples of all tasks (M, K, N, F), and the task of each sample (N,)."""
    probe = Probe(model.net, thinned(model.stream, part, most), len(model.rows)) if most else model.probe
    found = [probe.vectors(model.rows, part, t) for t in model.tasks]
    task = torch.cat([torch.full((one.shape[2],), t) for t, one in enumerate(found)])
    return torch.cat(found, 2), task.to(found[0].device)


def head_inputs(vectors: Tensor) -> Tensor:
    """Sum over learners and concatenate networks: (M, K, N, F) -> (N, M * F)."""
    return vectors.sum(1).transpose(0, 1).flatten(1)


def discriminate(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], sides: Tensor, *, steps: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Return test errors (D,) and shares on the wrong side (D,) of one dense layer for each of D contests.

    Computes in double precision: where both sides look alike the gradient is rounding alone, and Adam enlarges it.
    """
    middle, spread = train[0].double().mean(0), train[0].double().std(0)
    spread = torch.where(spread > 1e-6 * (1 + middle.abs()), spread, 1.0)  # a dead unit is constant

    def contest(data: tuple[Tensor, Tensor]) -> Contest:
        return Contest((data[0].double() - middle) / spread, data[1], sides.to(data[0].device))

    learned, held_out = contest(train), contest(test)
    theta = torch.zeros(len(sides), train[0].shape[1] + 1, dtype=torch.float64, device=train[0].device)
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(1, steps + 1):
        gradient = learned.gradient(theta)
        first.lerp_(gradient, 1 - BETA1)
        second.lerp_(gradient.square(), 1 - BETA2)
        spans = (second / (1 - BETA2**step)).sqrt_().add_(EPSILON)
        theta.sub_(first / (1 - BETA1**step) / spans * rate)
    return held_out.errors(theta)


class Contest:
    """Samples of T tasks in all contests they take part in: one product for a task and its S discriminators.

    A discriminator is a row of weights with the bias at the end. Either side of a contest weighs one half.
    """

    def __init__(self, x: Tensor, task: Tensor, sides: Tensor) -> None:
        D, T = sides.shape
        sizes = torch.bincount(task, minlength=T)  # (T,)
        n = int(sizes.max())
        self.x = x.new_zeros(T, n, x.shape[1] + 1)
        there = torch.arange(n, device=x.device) < sizes.unsqueeze(1)  # (T, n)
        self.x[..., -1] = 1.0
        self.x[there] = F.pad(x[task.argsort(stable=True)], (0, 1), value=1.0)
        self.which = torch.stack([row.nonzero().flatten() for row in sides.T])  # (T, S) contests of each task
        sign = sides.T.gather(1, self.which)  # (T, S)
        self.target = (sign == 1).double().unsqueeze(1)  # (T, 1, S)
        one, other = ((sides == s).double() @ sizes.double() for s in (1, -1))  # (D,) samples on either side
        share = 0.5 / torch.where(sign == 1, one[self.which], other[self.which])
        self.share = share.unsqueeze(1) * there.unsqueeze(2)  # (T, n, S)
        self.count = D

    def logits(self, theta: Tensor) -> Tensor:
        """(T, n, S)"""
        return self.x @ theta[self.which].transpose(1, 2)

    def gradient(self, theta: Tensor) -> Tensor:
        """Gradient of the mean cross-entropy of both sides, (D, F + 1)."""
        slope = self.share * (self.logits(theta).sigmoid_() - self.target)
        return self._summed(slope.transpose(1, 2) @ self.x)

    def errors(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropy (D,), and per cent on the wrong side (D,)."""
        logits = self.logits(theta)
        target = self.target.expand_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        # A tie is half wrong: without any difference the share is one half.
        wrong = 0.5 - 0.5 * logits.sign() * (2 * target - 1)
        each = [self._summed((self.share * value).sum(1).unsqueeze(2)).squeeze(1) for value in (loss, wrong)]
        return each[0], 100 * each[1]

    def _summed(self, parts: Tensor) -> Tensor:
        """Sum contributions of tasks (T, S, m) by contest: (D, m)."""
        out = parts.new_zeros(self.count, parts.shape[2])
        return out.index_add_(0, self.which.flatten(), parts.flatten(0, 1))


def _measure_discrepancy(case: Case, settings: DiscrepancySettings) -> Values:
    return asdict(discrepancy(case.model, settings)) | {"tasks": case.run.tasks}


def _common_features(result: Result) -> str | None:
    if result.config["tasks"] < 2:
        return "it has one task"
    return "it has a network for every task" if find_method(result.method).schedule == "discrete" else None


def _draw_discrepancy(label: str, runs: Runs) -> View:
    sides = np.array(runs[0]["sides"])
    errors = stacked(runs, "error").mean(0)
    T = sides.shape[1]
    title = f"{label}: test error of telling tasks apart, {count_text(runs)}"
    note = f"Binary cross-entropy of one dense layer: {log(2):.3f} is chance, 0 is apart."
    if (sides == 0).sum() == 0 and len(sides) == T:
        each = mean_line("one task against the rest", places(T), stacked(runs, "error"))
        return lines(title, "task, in the order of learning", "cross-entropy (nats)", [each], note)
    values = np.full((T, T), np.nan)
    for side, error in zip(sides, errors, strict=True):
        one, other = np.flatnonzero(side)
        values[one, other] = values[other, one] = error
    names = [str(t) for t in places(T)]
    order = "task, in the order of learning"
    return heatmap(title, order, order, names, names, values, note)


def _compare_discrepancy(benchmark: str, results: Compared) -> View:
    found = [bar_of(label, [run["mean_error"] for run in runs]) for label, runs in results.items()]
    for label, runs in results.items():
        own = [run["own_error"] for run in runs if run.get("own_error") not in (None, run["mean_error"])]
        found += [bar_of(f"{label}, own", own)] if own else []
    title = f"{benchmark}: test error of telling tasks apart by their features"
    note = f"The larger, the more alike are the tasks; {log(2):.3f} is chance. Points are runs."
    if len(found) > len(results):
        note += " Own: by each learner's features alone."
    return bars(title, "cross-entropy (nats)", found, note, digits=3)


DISCREPANCY = Analysis(
    "discrepancy",
    "how well one dense layer tells tasks apart by their features",
    _measure_discrepancy,
    _draw_discrepancy,
    _compare_discrepancy,
    _common_features,
    DiscrepancySettings(),
    ("mean_error", "own_error"),
)
