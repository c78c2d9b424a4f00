"""Penalties on learner predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from kenyon.methods.penalties.strength import Strength, check_strength, check_word
from kenyon.utils.determinism import per_run

if TYPE_CHECKING:
    from kenyon.models import Net


@dataclass(frozen=True)
class Predictions:
    """The input of a penalty on predictions: a batch of one run, or of all runs with a leading run axis."""

    log_p: Tensor  # (..., B, C), all learners together
    own_log_p: Tensor | None  # (..., K, B, C), each learner alone; only where needed
    weight: Tensor  # (..., B) share of each sample; sums to 1, padding has 0
    learned: dict[str, Tensor]  # the learned parameters
    first_task: bool
    # (..., n, B, C) logits of the heads of earlier tasks, and those that they had before the task; None in the first
    earlier: Tensor | None = None
    teacher: Tensor | None = None


# Inputs that penalties ask for: each learner's own prediction, and the logits of the network that the previous task
# left.
NEEDS = frozenset({"learner_outputs", "teacher"})
DivergenceForm = Literal["published", "paper"]


class PredictionPenalty(Protocol):
    """The interface of penalties on predictions, which any class may have.

    An optional class attribute `needs` names inputs besides the joint prediction, some of `NEEDS`; without it, a true
    `needs_own` stands for {"learner_outputs"}.
    """

    @property
    def strength(self) -> Strength: ...

    @property
    def validated(self) -> bool:
        """True if it counts in the validation loss."""

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        """Return the shapes of its own parameters by name."""

    def value(self, p: Predictions) -> Tensor:
        """Return one number, or one a run (R,), without the strength, which the loop applies."""


def needs_of(penalty: PredictionPenalty) -> frozenset[str]:
    """Return the inputs of a penalty besides the joint prediction."""
    own = {"learner_outputs"} if getattr(penalty, "needs_own", False) else ()
    return frozenset(getattr(penalty, "needs", own))


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
    form: DivergenceForm = "published"
    needs = frozenset({"learner_outputs"})
    needs_own = True
    validated = False

    def __post_init__(self) -> None:
        check_strength("gamma", self.strength)
        check_word("form", self.form, DivergenceForm)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {"afs": (net.learners, net.learners)} if self.adaptive else {}

    def value(self, p: Predictions) -> Tensor:
        assert p.own_log_p is not None
        log_p, K = p.own_log_p, p.own_log_p.shape[-3]
        if K == 1:  # no other learner; the paper's weights would be a softmax over nothing
            return p.weight.new_zeros(p.weight.shape[:-1])
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
        cross = _products(flat_log, flat.transpose(-2, -1))  # (..., student, target)
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
            return _products(scale * -w, flat).view(ctx.shape), None, None
        K = w.shape[-1]
        own = torch.diag_embed(torch.diagonal(w, dim1=-2, dim2=-1))  # a learner is no target of its own
        slope = 100.0 * (weighted - w / K * weighted.sum(-1, keepdim=True))
        return _products(scale * (own - w), flat).view(ctx.shape), scale * slope, None


def _products(a: Tensor, b: Tensor) -> Tensor:
    return per_run(torch.bmm, 1, a, b) if a.ndim == 3 else a @ b


@dataclass(frozen=True)
class Confidence:
    """CPR, classifier-projection regularization: minus the mean entropy of the prediction, - H(p).

    Less confident predictions make for wider minima. It acts from the first task on and, as published, counts in the
    validation loss.
    """

    strength: Strength
    needs = frozenset[str]()
    needs_own = False
    validated = True

    def __post_init__(self) -> None:
        check_strength("lambda_cpr", self.strength)

    def learned(self, net: Net) -> dict[str, tuple[int, ...]]:
        return {}

    def value(self, p: Predictions) -> Tensor:
        return ((p.log_p.exp() * p.log_p).sum(-1) * p.weight).sum(-1)
