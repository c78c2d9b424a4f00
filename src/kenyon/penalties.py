"""What a method adds to the loss of the current task.

Two kinds. A parameter penalty looks at the weights of all runs at once and gives one value a run, (R,); its gradient
is known in closed form, as forces on the weights that the optimiser adds while it passes over them. A prediction
penalty looks at what the learners of one run say of a batch. Strengths are numbers, or tensors (R,)
when runs differ. A penalty may have parameters of its own ("learned"): they live in the runs' rows beside the
weights, are drawn from N(0, 1) at the start of every task and trained by the same optimiser and loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.forces import Decay, Force, Pull
from kenyon.passes import group_squares

if TYPE_CHECKING:
    from kenyon.nets import Net

Strength = float | Tensor  # one for all runs, or (R,)


@dataclass(frozen=True)
class Weights:
    """What a parameter penalty may look at. P counts all numbers of a run, Pp only the protected ones."""

    net: Net
    theta: Tensor  # (R, P)
    heads: Tensor  # (n,) the heads in use
    importance: Tensor  # (R, Pp) for the tasks before
    anchor: Tensor  # (R, Pp) where those tasks left the weights
    expanded: Tensor | None = None  # (R, P) the expanded network of AF-2
    expanded_importance: Tensor | None = None  # (R, Pp)


@dataclass(frozen=True)
class Predictions:
    """What a prediction penalty may look at, for one batch of one run, or of all with a leading run axis."""

    log_p: Tensor  # (..., B, C), all learners together
    own_log_p: Tensor | None  # (..., K, B, C), each learner alone; only when `needs_own`
    weight: Tensor  # (..., B) share of each sample; sums to 1, padding has 0
    learned: dict[str, Tensor]  # the learned parameters
    first_task: bool


@dataclass(frozen=True)
class StabilityProtection:
    """factor * lambda_SP * sum_m importance_m (theta_m - anchor_m)^2 over all protected weights.

    factor is 1/2 for EWC and MAS, and 1 for SI, as published.
    """

    strength: Strength
    factor: float = 0.5

    def __post_init__(self) -> None:
        _check("lambda_sp", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, w: Weights) -> Tensor:
        change = w.theta[:, : w.net.layout.protected] - w.anchor
        return self.strength * self.factor * _sums(w.importance * change.square(), 1)

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        return [Pull(_per_run(self.strength, w.theta, 2 * self.factor), w.importance, w.anchor)]


@dataclass(frozen=True)
class ActiveForgetting1:
    """AF-1, decay towards an empty network: lambda_AF / 2 * sum over weights theta^2, the current head included.

    Adaptive: every parameter tensor l weighs its K learners by K * softmax(a_l), with a_l learned; the head
    keeps weight 1. Uniform: weight 1 everywhere. Task gates are left out, as published.
    """

    strength: Strength
    adaptive: bool = False

    def __post_init__(self) -> None:
        _check("lambda_af", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {"af1": (len(net.backbone_names), net.learners)} if self.adaptive else {}

    def value(self, w: Weights) -> Tensor:
        views = w.net.layout.views(w.theta)
        norms = _square_sums(w.net, views)  # (R, L, K)
        if self.adaptive:
            norms = w.net.learners * torch.softmax(views["af1"], dim=-1) * norms
        head = sum(_sums(views[n].index_select(1, w.heads).square(), 1) for n in ("head.weight", "head.bias"))
        return self.strength * 0.5 * (norms.flatten(1).sum(1) + head)

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        """The decay of every weight. What the penalty itself has learned gets its gradient here."""
        R, L, K = len(w.theta), len(w.net.backbone_names), w.net.learners
        strength = _per_run(self.strength, w.theta).view(R, 1, 1)
        rates = strength.expand(R, L, K)
        if self.adaptive:
            share = torch.softmax(w.net.layout.view(w.theta, "af1"), dim=-1)
            rates = strength * K * share
            norms = square_sums(w.net, w.theta)
            slope = rates * 0.5 * (norms - (share * norms).sum(-1, keepdim=True))
            w.net.layout.view(gradient, "af1").add_(slope)
        heads = torch.zeros(R, len(w.net.class_counts), device=w.theta.device)
        heads.index_copy_(1, w.heads, strength.view(R, 1).expand(R, len(w.heads)))
        return [Decay(torch.cat([rates.flatten(1), heads], dim=1), w.net.groups)]


@dataclass(frozen=True)
class ActiveForgetting2:
    """AF-2, decay towards an expanded network that learns the new task alone (AFEC).

    lambda_AF / 2 * sum_m I_e,m (theta_m - theta_e,m)^2 over all protected weights; the loop trains theta_e and
    measures its Fisher information I_e before every epoch.
    """

    strength: Strength

    def __post_init__(self) -> None:
        _check("lambda_af", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, w: Weights) -> Tensor:
        assert w.expanded is not None and w.expanded_importance is not None
        protected = w.net.layout.protected
        change = w.theta[:, :protected] - w.expanded[:, :protected]
        return self.strength * 0.5 * _sums(w.expanded_importance * change.square(), 1)

    def forces(self, w: Weights, gradient: Tensor) -> list[Force]:
        assert w.expanded is not None and w.expanded_importance is not None
        target = w.expanded[:, : w.net.layout.protected]
        return [Pull(_per_run(self.strength, w.theta), w.expanded_importance, target)]


@dataclass(frozen=True)
class Divergence:
    """AF-S, the divergence between the learners' predictions, mean over the batch.

    published: gamma * sum_k sum_{l != k} w_kl KL(p_l || p_k) with the target p_l detached, and
               w_k = K * softmax(100 b_k) over all l.
    paper:     gamma * sum_i sum_{j != i} w_ij KL(p_i || p_j) with gradients to both, and
               w_i = (K-1) * softmax(b_i) over j != i, so that the w average to exactly 1.
    b is learned when adaptive; w = 1 when not, and on the first task.
    """

    strength: Strength
    adaptive: bool = False
    form: Literal["published", "paper"] = "published"
    needs_own = True  # looks at each learner's own prediction

    def __post_init__(self) -> None:
        _check("gamma", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {"afs": (net.learners, net.learners)} if self.adaptive else {}

    def value(self, p: Predictions) -> Tensor:
        """Without the strength, which the loop applies for the run at hand."""
        assert p.own_log_p is not None
        log_p, K = p.own_log_p, p.own_log_p.shape[-3]
        adaptive = self.adaptive and not p.first_task
        if self.form == "published":
            return _PublishedDivergence.apply(log_p, p.learned["afs"] if adaptive else None, p.weight)  # type: ignore
        target = log_p
        prob = target.exp() * p.weight.unsqueeze(-2).unsqueeze(-1)
        entropy = (prob * target).sum((-2, -1))  # (..., K) of the target learner
        cross = prob.flatten(-2) @ log_p.flatten(-2).transpose(-2, -1)  # (..., target, student)
        kl = entropy.unsqueeze(-1) - cross  # KL(p_target || p_student)
        others = ~torch.eye(K, dtype=torch.bool, device=log_p.device)
        if not adaptive:
            return (kl * others).sum((-2, -1))
        b = p.learned["afs"]
        w = (K - 1) * torch.softmax(b.masked_fill(~others, -torch.inf), dim=-1)  # row of b: the first of the pair
        return (w * kl * others).sum((-2, -1))


class _PublishedDivergence(torch.autograd.Function):
    """AF-S as published, with its gradient in closed form: sum_s sum_{t != s} w_st KL(p_t || p_s), p_t detached.

    For the student's log-probabilities it is -sum_t w_st p_t; for its weights w_s = K softmax(100 b_s), by the
    softmax's rule, 100 w_s (kl_s - mean of kl_s under the softmax).
    """

    @staticmethod
    def forward(ctx: Any, log_p: Tensor, b: Tensor | None, weight: Tensor) -> Tensor:
        """log_p (..., K, B, C), b (..., K, K) or None, weight (..., B) -> (...)"""
        K = log_p.shape[-3]
        prob = log_p.exp() * weight.unsqueeze(-2).unsqueeze(-1)
        flat, flat_log = prob.flatten(-2), log_p.flatten(-2)  # (..., K, B * C)
        cross = flat_log @ flat.transpose(-2, -1)  # (..., student, target)
        kl = torch.diagonal(cross, dim1=-2, dim2=-1).unsqueeze(-2) - cross  # 0 where student and target are one
        if b is None:
            w = 1 - torch.eye(K, device=log_p.device, dtype=log_p.dtype)
        else:
            w = K * torch.softmax(100.0 * b, dim=-1)
        weighted = w * kl
        ctx.save_for_backward(flat, w, weighted)
        ctx.shape, ctx.adaptive = log_p.shape, b is not None
        return weighted.sum((-2, -1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat, w, weighted = ctx.saved_tensors
        scale = gradient.unsqueeze(-1).unsqueeze(-1)
        if not ctx.adaptive:
            return (scale * -w @ flat).view(ctx.shape), None, None
        K = w.shape[-1]
        own = torch.diag_embed(torch.diagonal(w, dim1=-2, dim2=-1))  # a learner is no target of its own
        slope = 100.0 * (weighted - w / K * weighted.sum(-1, keepdim=True))
        return (scale * (own - w) @ flat).view(ctx.shape), scale * slope, None


ParameterPenalty = StabilityProtection | ActiveForgetting1 | ActiveForgetting2
PredictionPenalty = Divergence
Penalty = ParameterPenalty | PredictionPenalty


def strength_of(strength: Strength, run: int | slice) -> float | Tensor:
    """The strength of one run, or of those of a slice."""
    return strength[run] if isinstance(strength, Tensor) else strength


def _per_run(strength: Strength, like: Tensor, factor: float = 1.0) -> Tensor:
    """A strength as (R,), times a factor."""
    if isinstance(strength, Tensor):
        return strength.to(like) * factor
    return _constant(strength * factor, len(like), like.device, like.dtype)


@lru_cache(maxsize=64)
def _constant(value: float, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Made once: every step asks for it."""
    return torch.full((size,), value, device=device, dtype=dtype)


def square_sums(net: Net, theta: Tensor) -> Tensor:
    """Sum of squares of every parameter tensor and learner, (R, L, K)."""
    if theta.is_cuda:
        found = group_squares(theta, net.group_bounds)
        return found.view(len(theta), len(net.backbone_names), net.learners)
    return _square_sums(net, net.layout.views(theta))


def _square_sums(net: Net, views: dict[str, Tensor]) -> Tensor:
    return torch.stack([_sums(views[n].square(), 2) for n in net.backbone_names], dim=1)


def _sums(x: Tensor, axes: int) -> Tensor:
    """Sums over all but the first `axes` axes.

    On a CPU run by run: how a large sum is shared among threads, and so how it rounds, would otherwise depend on the
    number of runs.
    """
    flat = x.flatten(axes)
    return flat.sum(-1) if x.is_cuda else torch.stack([run.sum(-1) for run in flat])


def _check(name: str, strength: Strength) -> None:
    values = torch.as_tensor(strength, dtype=torch.float32)  # as the runs will use it: 1e39 is infinite there
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ConfigError(f"{name} must be a finite number, 0 or larger, not {strength}.")
