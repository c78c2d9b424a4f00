"""Penalties on weights, with gradients in closed form.

A penalty takes the weights of all runs at once and returns one value a run, (R,). Its gradients are `QuadraticPull`s
and `WeightDecay`s, which the optimizer adds in the pass in which it updates the weights. Strengths are numbers, or
tensors (R,) where runs differ. A penalty may learn parameters itself ("learned"): they are part of the rows, drawn
from N(0, 1) at the start of every task, and trained by the same optimizer and loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from kenyon.backends.triton.updates import Force, QuadraticPull, WeightDecay, group_squares
from kenyon.methods.penalties.predictions import Confidence, Divergence, PredictionPenalty, Predictions
from kenyon.methods.penalties.strength import Strength, check_strength, check_word, per_run, strength_of
from kenyon.utils.determinism import is_deterministic

if TYPE_CHECKING:
    from kenyon.models import Net

DecayingHeads = Literal["all", "open", "current", "none"]

__all__ = [
    "ActiveForgetting1",
    "ActiveForgetting2",
    "Confidence",
    "DecayingHeads",
    "Divergence",
    "ParameterPenalty",
    "Penalty",
    "PredictionPenalty",
    "Predictions",
    "StabilityProtection",
    "Strength",
    "Weights",
    "square_distance",
    "square_sums",
    "strength_of",
    "weighed",
]


@dataclass(frozen=True)
class Weights:
    """The input of a penalty on weights. P counts all numbers of a run, Pp the protected ones."""

    net: Net
    theta: Tensor  # (R, P)
    heads: Tensor  # (n,) the heads in use
    importance: Tensor  # (R, Pp) for earlier tasks
    anchor: Tensor  # (R, Pp) the weights that the previous task left
    expanded: Tensor | None = None  # (R, P) the expanded network of AF-2
    expanded_importance: Tensor | None = None  # (R, Pp)


class ParameterPenalty(Protocol):
    """The interface of penalties on weights, which any class may have.

    With an attribute `validated = False`, its value does not count in the validation loss.
    """

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its own parameters by name."""

    def value(self, w: Weights) -> Tensor:
        """Return one number a run, (R,), with the strength, for the validation loss."""

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        """Return the gradients of the value; add those of the penalty's own parameters to `gradient`, (R, P)."""


@dataclass(frozen=True)
class StabilityProtection:
    """factor * lambda_SP * sum_m importance_m (theta_m - anchor_m)^2 over all protected weights.

    factor is 1/2 for EWC and MAS, and 1 for SI, as published.
    """

    strength: Strength
    factor: float = 0.5

    def __post_init__(self) -> None:
        check_strength("lambda_sp", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, w: Weights) -> Tensor:
        distance = square_distance(w.theta[:, : w.net.layout.protected], w.anchor, w.importance)
        return self.strength * self.factor * distance

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        return [QuadraticPull(per_run(self.strength, w.theta, 2 * self.factor), w.importance, w.anchor)]


@dataclass(frozen=True)
class ActiveForgetting1:
    """AF-1, decay towards an empty network: lambda_AF / 2 * sum over weights theta^2.

    adaptive: every parameter tensor l weighs its K learners by K * softmax(a_l), with a_l learned; heads keep weight
    1. With `of_learners` a single a weighs whole learners, as in the paper's equation. Otherwise all weights are 1.
    Task gates do not decay, as published.

    Of the heads, those in use decay ("current"). With "open" those of later tasks do too, as published, where their
    number is known: Adam makes steps of its own size even of a tiny gradient that nothing opposes, so that at 1e-6 a
    new task finds a head of nearly zero, and with "current" the one that was drawn. With "all" finished heads decay
    as well, as in the authors' code of CAF, where nothing holds them and their softmax flattens. The paper's equation
    decays no heads ("none").
    """

    strength: Strength
    adaptive: bool = False
    heads: DecayingHeads = "current"
    of_learners: bool = False

    def __post_init__(self) -> None:
        check_strength("lambda_af", self.strength)
        check_word("af1_heads", self.heads, DecayingHeads)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        tensors = 1 if self.of_learners else len(net.backbone_names)
        return {"af1": (tensors, net.learners)} if self.adaptive else {}

    def value(self, w: Weights) -> Tensor:
        views = w.net.layout.views(w.theta)
        norms = _square_sums(w.net, views)  # (R, L, K)
        if self.adaptive:
            norms = weighed(norms, views["af1"])
        heads = torch.stack([_sums(views[n].square(), 2) for n in w.net.head_names], dim=1)  # (R, parts, T)
        return self.strength * 0.5 * (norms.flatten(1).sum(1) + (heads * self._decays(w)).flatten(1).sum(1))

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        R, L, K = len(w.theta), len(w.net.backbone_names), w.net.learners
        strength = per_run(self.strength, w.theta).view(R, 1, 1)
        rates = strength.expand(R, L, K)
        if self.adaptive:
            share = torch.softmax(w.net.layout.view(w.theta, "af1"), dim=-1)  # (R, L or 1, K)
            norms = square_sums(w.net, w.theta)
            if self.of_learners:
                norms = norms.sum(1, keepdim=True)
            slope = strength * K * share * 0.5 * (norms - (share * norms).sum(-1, keepdim=True))
            w.net.layout.view(gradient, "af1").add_(slope)
            rates = (strength * K * share).expand(R, L, K)
        return [
            WeightDecay(torch.cat([rates.flatten(1), strength.view(R, 1) * self._decays(w)], dim=1), w.net.groups)
        ]

    def _decays(self, w: Weights) -> Tensor:
        """(T,) 1 for heads that decay, 0 for others."""
        decays = w.theta.new_zeros(len(w.net.class_counts))
        if self.heads == "all":
            return decays + 1
        if self.heads == "open":
            decays += torch.arange(len(decays), device=w.theta.device) > w.heads.max()
        return decays if self.heads == "none" else decays.index_fill_(0, w.heads, 1.0)


@dataclass(frozen=True)
class ActiveForgetting2:
    """AF-2, decay towards an expanded network that learns the new task alone (AFEC).

    lambda_AF / 2 * sum_m I_e,m (theta_m - theta_e,m)^2 over all protected weights, where `ExpandedNetwork` trains
    theta_e and measures its Fisher information I_e before every epoch. That is the published practice; in the paper's
    text theta_e has finished learning the task.

    validated: it counts in the validation loss. As published it does not: theta_e and I_e change in every epoch, so
    that its values cannot be compared.
    """

    strength: Strength
    validated: bool = True

    def __post_init__(self) -> None:
        check_strength("lambda_af", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, w: Weights) -> Tensor:
        assert w.expanded is not None and w.expanded_importance is not None
        protected = w.net.layout.protected
        target = w.expanded[:, :protected]
        return self.strength * 0.5 * square_distance(w.theta[:, :protected], target, w.expanded_importance)

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        assert w.expanded is not None and w.expanded_importance is not None
        target = w.expanded[:, : w.net.layout.protected]
        return [QuadraticPull(per_run(self.strength, w.theta), w.expanded_importance, target)]


Penalty = ParameterPenalty | PredictionPenalty


def square_distance(theta: Tensor, target: Tensor, importance: Tensor) -> Tensor:
    """Return sum_m importance_m (theta_m - target_m)^2 of every run: (R, ...) -> (R,)."""
    return _sums(importance * (theta - target).square(), 1)


def weighed(norms: Tensor, a: Tensor) -> Tensor:
    """Return sums of squares (..., L, K) with the learners of each tensor weighed by K * softmax(a_l)."""
    return norms.shape[-1] * torch.softmax(a, dim=-1) * norms


def square_sums(net: Net, theta: Tensor) -> Tensor:
    """Return the sum of squares of every parameter tensor and learner, (R, L, K)."""
    if theta.is_cuda:
        found = group_squares(theta, net.group_bounds)
        return found.view(len(theta), len(net.backbone_names), net.learners)
    return _square_sums(net, net.layout.views(theta))


def _square_sums(net: Net, views: dict[str, Tensor]) -> Tensor:
    return torch.stack([_sums(views[n].square(), 2) for n in net.backbone_names], dim=1)


def _sums(x: Tensor, axes: int) -> Tensor:
    """Return sums over all but the first `axes` axes.

    On a CPU run by run: otherwise the division of a large sum among threads, and its rounding, would depend on the
    number of runs.
    """
    flat = x.flatten(axes) if x.ndim > axes else x.unsqueeze(-1)  # a parameter may be a scalar
    return torch.stack([run.sum(-1) for run in flat]) if is_deterministic() or not x.is_cuda else flat.sum(-1)
