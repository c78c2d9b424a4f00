"""How different tasks look in feature space: how well one dense layer tells their features apart (Fig. 4a-c).

The paper trains "a simple discriminator consisting of a fully-connected layer" and takes its binary cross-entropy on
test data; the larger the error, the smaller the difference. Where it is silent, this is chosen:
- features are what heads see, the sum of the learners' vectors (side by side for independent networks), without
  dropout and without task gates, which would give the task away;
- every pair of tasks has its discriminator, like the terms Div(D_i, D_j) of Proposition 2; `against="rest"` has one a
  task, that task or any other, which is how the caption of Fig. 4 may be read;
- features are standardised with the mean and deviation of all training features, so that a rate means the same for
  every network; both sides weigh one half, whatever their sizes;
- training is full-batch Adam from zero with a fixed number of steps. The problem is convex, so nothing is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.analysis.model import Model
from kenyon.analysis.probe import Probe, thinned
from kenyon.errors import ConfigError
from kenyon.metrics import Array
from kenyon.train.adam import Adam


@dataclass(frozen=True)
class DiscrepancySettings:
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
    sides: tuple[tuple[int, ...], ...]  # (D, T) 1: the one side, -1: the other, 0: takes no part
    error: Array  # (D,) binary cross-entropy on test data, in nats: log 2 is chance, 0 is apart
    wrong: Array  # (D,) share of test samples on the wrong side, in per cent; both sides weigh one half
    mean_error: float


def discrepancy(model: Model, settings: DiscrepancySettings | None = None) -> Discrepancy:
    s = settings or DiscrepancySettings()
    if len(model.tasks) < 2:
        raise ConfigError("A single task differs from no other: discrepancy needs two tasks.")
    if model.answers == "per task":
        raise ConfigError("Networks of one task each have no common feature space: discrepancy needs a shared one.")
    train, task = task_features(model, "train", s.samples)
    test, test_task = task_features(model, "test", s.samples)
    sides = contests(len(model.tasks), s.against)
    error, wrong = discriminate((train, task), (test, test_task), sides, steps=s.steps, rate=s.rate)
    values = error.double().cpu().numpy()
    table = tuple(tuple(int(v) for v in row) for row in sides.tolist())
    return Discrepancy(table, values, wrong.double().cpu().numpy(), float(values.mean()))


def contests(tasks: int, against: str = "pairs") -> Tensor:
    """Which tasks stand on which side of each discriminator, (D, T)."""
    if against == "rest":
        return 2 * torch.eye(tasks, dtype=torch.long) - 1
    sides = torch.zeros(tasks * (tasks - 1) // 2, tasks, dtype=torch.long)
    for row, (one, other) in zip(sides, combinations(range(tasks), 2), strict=True):
        row[one], row[other] = 1, -1
    return sides


def task_features(model: Model, part: str, most: int) -> tuple[Tensor, Tensor]:
    """The features of all tasks (N, F), and the task of each (N,)."""
    probe = Probe(model.net, thinned(model.stream, part, most), len(model.rows)) if most else model.probe
    found = [probe.features(model.rows, part, t).transpose(0, 1).flatten(1) for t in model.tasks]
    return torch.cat(found), torch.cat([torch.full((len(f),), t) for t, f in enumerate(found)]).to(found[0].device)


def discriminate(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], sides: Tensor, *, steps: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Test errors (D,) and shares on the wrong side (D,) of one dense layer for each of D contests.

    All at once: the logits of every sample for every discriminator are one product, and a sample that takes no part
    weighs nothing.
    """
    (x, task), (y, test_task) = train, test
    middle, spread = x.mean(0), x.std(0)
    spread = torch.where(spread > 1e-6 * (1 + middle.abs()), spread, 1.0)  # a dead unit says nothing
    x, y = (F.pad((z - middle) / spread, (0, 1), value=1.0) for z in (x, y))  # the last column is for the bias
    sides = sides.to(x.device)
    share, target = _shares(sides, task)
    D, width = len(sides), x.shape[1]
    theta = torch.zeros(D, width, device=x.device, dtype=x.dtype)
    optimiser = Adam(theta.shape, x.device)
    rates, moves = torch.full((D,), rate, device=x.device), torch.ones(D, device=x.device)
    for _ in range(steps):
        pull = share * (torch.sigmoid(x @ theta.T) - target)  # (N, D)
        optimiser.step(theta, pull.T @ x, rates, moves)
    share, target = _shares(sides, test_task)
    logits = y @ theta.T
    error = (share * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).sum(0)
    # A tie is half wrong: without any difference the share is one half.
    wrong = (share * ((logits > 0) != (target > 0.5)).float().where(logits != 0, torch.tensor(0.5))).sum(0)
    return error, 100 * wrong


def _shares(sides: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
    """What each sample weighs in each contest (N, D), summing to one half for either side, and its target (N, D)."""
    side = sides.T[task]  # (N, D)
    one, other = (side == 1).float(), (side == -1).float()
    share = 0.5 * (one / one.sum(0).clamp(min=1) + other / other.sum(0).clamp(min=1))
    return share, one
