"""How different tasks look in feature space: how well one dense layer tells their features apart (Fig. 4a-c).

The paper trains "a simple discriminator consisting of a fully-connected layer" and takes its binary cross-entropy on
test data; the larger the error, the smaller the difference. Where it is silent, this is chosen:
- features are what heads see, the sum of the learners' vectors (side by side for independent networks), without
  dropout and without task gates, which would give the task away; and beside that every learner's own vector, whose
  discriminators are averaged: what Proposition 1 says of one learner's parameter space;
- every pair of tasks has its discriminator, like the terms Div(D_i, D_j) of Proposition 1; `against="rest"` has one a
  task, that task or any other, which is how the caption of Fig. 4 may be read;
- features are standardised with the mean and deviation of all training features, so that a rate means the same for
  every network; both sides weigh one half, whatever their sizes;
- training is full-batch Adam from zero with a fixed number of steps. The problem is convex, so nothing is random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.optimizers import BETA1, BETA2, EPSILON
from kenyon.errors import ConfigError
from kenyon.metrics import Array
from kenyon.paper.analyses.model import Model, Probe, thinned


@dataclass(frozen=True)
class DiscrepancySettings:
    """`against` pairs: a discriminator for every pair of tasks; rest: one a task, against all others."""

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
    """How badly D discriminators tell tasks apart by their features."""

    sides: tuple[tuple[int, ...], ...]  # (D, T) 1: the one side, -1: the other, 0: takes no part
    error: Array  # (D,) binary cross-entropy on test data, in nats: log 2 is chance, 0 is apart
    wrong: Array  # (D,) share of test samples on the wrong side, in per cent; both sides weigh one half
    mean_error: float
    own_error: float  # the same, by each learner's own vector: the mean over learners


def discrepancy(model: Model, settings: DiscrepancySettings | None = None) -> Discrepancy:
    """Train a dense layer for every contest on training features, and test it (Fig. 4a-c)."""
    s = settings or DiscrepancySettings()
    if len(model.tasks) < 2:
        raise ConfigError("A single task differs from no other: discrepancy needs two tasks.")
    if model.answers == "per task":
        raise ConfigError("Networks of one task each have no common feature space: discrepancy needs a shared one.")
    train, test = (task_vectors(model, part, s.samples) for part in ("train", "test"))
    sides = contests(len(model.tasks), s.against)

    def told_apart(features: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        learned, held_out = ((features(vectors), task) for vectors, task in (train, test))
        return discriminate(learned, held_out, sides, steps=s.steps, rate=s.rate)

    error, wrong = told_apart(seen_by_heads)
    places = [(m, k) for m in range(len(model.rows)) for k in range(model.net.learners)]
    own = [told_apart(itemgetter(place))[0] for place in places] if len(places) > 1 else [error]
    table = tuple(tuple(int(v) for v in row) for row in sides.tolist())
    values = error.double().cpu().numpy()
    return Discrepancy(
        table, values, wrong.double().cpu().numpy(), float(values.mean()), float(torch.stack(own).mean())
    )


def contests(tasks: int, against: str = "pairs") -> Tensor:
    """Which tasks stand on which side of each discriminator, (D, T)."""
    if against == "rest":
        return 2 * torch.eye(tasks, dtype=torch.long) - 1
    sides = torch.zeros(tasks * (tasks - 1) // 2, tasks, dtype=torch.long)
    for row, (one, other) in zip(sides, combinations(range(tasks), 2), strict=True):
        row[one], row[other] = 1, -1
    return sides


def task_vectors(model: Model, part: str, most: int) -> tuple[Tensor, Tensor]:
    """The learners' vectors for samples of all tasks (M, K, N, F), and the task of each sample (N,)."""
    probe = Probe(model.net, thinned(model.stream, part, most), len(model.rows)) if most else model.probe
    found = [probe.vectors(model.rows, part, t) for t in model.tasks]
    task = torch.cat([torch.full((one.shape[2],), t) for t, one in enumerate(found)])
    return torch.cat(found, 2), task.to(found[0].device)


def seen_by_heads(vectors: Tensor) -> Tensor:
    """(M, K, N, F) -> (N, M * F): the sum over learners, networks side by side."""
    return vectors.sum(1).transpose(0, 1).flatten(1)


def discriminate(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], sides: Tensor, *, steps: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Test errors (D,) and shares on the wrong side (D,) of one dense layer for each of D contests, all at once.

    In double precision: where both sides look alike the gradient is nothing but rounding, and Adam would enlarge it.
    """
    middle, spread = train[0].double().mean(0), train[0].double().std(0)
    spread = torch.where(spread > 1e-6 * (1 + middle.abs()), spread, 1.0)  # a dead unit says nothing

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
    """The samples of T tasks in all contests they take part in: each task meets its S discriminators as one product.

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
        """Of the mean cross-entropy of either side, (D, F + 1)."""
        pull = self.share * (self.logits(theta).sigmoid_() - self.target)
        return self._summed(pull.transpose(1, 2) @ self.x)

    def errors(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy (D,), and per cent on the wrong side (D,)."""
        logits = self.logits(theta)
        target = self.target.expand_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        # A tie is half wrong: without any difference the share is one half.
        wrong = 0.5 - 0.5 * logits.sign() * (2 * target - 1)
        each = [self._summed((self.share * value).sum(1).unsqueeze(2)).squeeze(1) for value in (loss, wrong)]
        return each[0], 100 * each[1]

    def _summed(self, parts: Tensor) -> Tensor:
        """What the tasks (T, S, m) have to say to each contest, together: (D, m)."""
        out = parts.new_zeros(self.count, parts.shape[2])
        return out.index_add_(0, self.which.flatten(), parts.flatten(0, 1))
