"""Task heads: predictions from the learners' feature vectors.

The head of task t is applied to the sum of the learners' vectors; a learner's own prediction is the same head applied
to its own vector (Methods, Multiple Parallel Continual Learners). An optional task gate first multiplies the vector
of learner i elementwise by sigmoid(100 e_{i,t}), with e_{i,t} as long as the vector, so that a task receives about
half of each vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layout import InUse
from kenyon.backends.torch.generators import seeded
from kenyon.backends.triton import heads as wide
from kenyon.backends.triton.heads import own_logits
from kenyon.backends.triton.losses import NO_CLASS as NO_CLASS
from kenyon.errors import ConfigError
from kenyon.random import Purpose, key, normal
from kenyon.utils.determinism import per_run

FirstHeads = Literal["drawn", "zero"]
GATE_SLOPE = 100.0
# Gain of the initial weights of a policy head, as usual for PPO and as published: all actions are about equally
# likely, whatever the features of earlier games, so that a new game is explored.
POLICY_GAIN = 0.01


@dataclass(frozen=True)
class Outputs:
    """Predictions of one run for a batch, or of all runs with a leading run axis."""

    logits: Tensor  # (..., B, C), of the sum of the learners
    own_logits: Tensor | None  # (..., K, B, C), of each learner
    # With value heads: their outputs (..., B), and the sum of the learners' vectors (..., B, F)
    values: Tensor | None = None
    vector: Tensor | None = None
    # In training with batch normalization: running statistics updated with this batch, (K, ...) by name
    statistics: dict[str, Tensor] | None = None
    earlier: Tensor | None = None  # (..., n, B, C) logits of the heads of earlier tasks, if they are asked for


class Heads:
    """T heads of up to C classes for K learners. Holds no parameters itself: they are in the rows of the runs."""

    def __init__(
        self,
        class_counts: Sequence[int],
        features: int,
        learners: int,
        *,
        values: bool,
        gate: bool,
        first: FirstHeads,
        device: torch.device,
    ) -> None:
        """`values`: every task has a value head of one number too. `first`: how head weights are initialized."""
        if first not in get_args(FirstHeads):
            raise ConfigError(f"first_heads must be {' or '.join(get_args(FirstHeads))}, not '{first}'.")
        if values and first == "zero":
            raise ConfigError("Heads of games begin nearly even already: first_heads=zero is for images and tables.")
        self.class_counts, self.features, self.learners = tuple(class_counts), features, learners
        self.values, self.gate, self.first = values, gate, first
        T, C = len(self.class_counts), max(self.class_counts)
        self.shapes: dict[str, tuple[int, ...]] = {"head.weight": (T, C, features), "head.bias": (T, C)}
        if values:
            self.shapes |= {"value.weight": (T, 1, features), "value.bias": (T, 1)}
        self.absent: Tensor | None = None  # (T, C) True where a head has no such class
        if len(set(self.class_counts)) > 1:
            counts = torch.tensor(self.class_counts, device=device).unsqueeze(1)
            self.absent = torch.arange(C, device=device) >= counts

    @property
    def padding(self) -> int:
        """The count of numbers in a row that belong to absent classes."""
        return (max(self.class_counts) * len(self.class_counts) - sum(self.class_counts)) * (self.features + 1)

    def initialize(self, views: Mapping[str, Tensor], seed: int) -> None:
        """Write the initial weights of all heads and gates into the named views of a row of zeros."""
        for t, count in enumerate(self.class_counts):
            if self.values:  # biases stay 0
                views["head.weight"][t, :count] = self._orthogonal(count, POLICY_GAIN, key(seed, Purpose.HEAD, t))
                views["value.weight"][t] = self._orthogonal(1, 1.0, key(seed, Purpose.HEAD, t, 1))
            elif self.first == "drawn":
                head = seeded(partial(nn.Linear, self.features, count), key(seed, Purpose.HEAD, t))
                views["head.weight"][t, :count] = head.weight.detach()
                views["head.bias"][t, :count] = head.bias.detach()
            if self.gate:
                views["gate"][:, t] = normal(key(seed, Purpose.HEAD, -1, t), (self.learners, self.features))

    def outputs(
        self, f: Tensor, views: Mapping[str, Tensor], heads: Tensor, member: Tensor | None, *, own: bool
    ) -> Outputs:
        """Return the predictions for the learners' vectors (..., K, B, F); arguments as in `Net.forward`."""
        if self.gate:
            gate = torch.sigmoid(GATE_SLOPE * views["gate"].index_select(-2, heads))  # (..., K, n, F)
            if member is not None:
                gate = gate.gather(-2, member.unsqueeze(-2).unsqueeze(-1).expand(f.shape))  # (..., K, B, F)
            f = f * gate
        out = self._predictions(f, views, heads, member, own=own)
        if not self.values:
            return out
        z = f.sum(-3)
        return replace(out, values=self._values(z, views, heads, member), vector=z)

    def every(self, f: Tensor, views: Mapping[str, Tensor], heads: Tensor) -> Tensor:
        """Return the logits of each head (n,) for all vectors (..., K, B, F), without gates: (..., n, B, C)."""
        weight, bias = _selected(views, "head", heads)
        out = _linear(f.sum(-3), weight.flatten(-3, -2), bias.flatten(-2)).unflatten(-1, bias.shape[-2:])
        return self.mask_absent(out, heads).movedim(-2, -3)

    def mask_absent(self, logits: Tensor, heads: Tensor) -> Tensor:
        """Return logits (..., n, C) of these heads, or (..., C) of one, with NO_CLASS for absent classes."""
        return logits if self.absent is None else logits.masked_fill(self.absent.index_select(0, heads), NO_CLASS)

    def _orthogonal(self, rows: int, gain: float, seed_key: int) -> Tensor:
        """Return weights (rows, F) with orthogonal rows of length `gain`."""

        def build() -> nn.Linear:
            head = nn.Linear(self.features, rows)
            nn.init.orthogonal_(head.weight, gain)
            return head

        return seeded(build, seed_key).weight.detach()

    def _values(self, z: Tensor, views: Mapping[str, Tensor], heads: Tensor, member: Tensor | None) -> Tensor:
        """Return the values for the sum of the learners' vectors (..., B, F): (..., B)."""
        weight, bias = _selected(views, "value", heads)
        weight, bias = weight.squeeze(-2), bias.squeeze(-1)  # (..., n, F), (..., n)
        if member is None:  # not a matrix product with one column: its bits would depend on the number of runs
            return (z * weight).sum(-1) + bias
        return _linear(z, weight, bias).gather(-1, member.unsqueeze(-1)).squeeze(-1)

    def _predictions(
        self, f: Tensor, views: Mapping[str, Tensor], heads: Tensor, member: Tensor | None, *, own: bool
    ) -> Outputs:
        weight, bias = _selected(views, "head", heads)
        if bias.ndim == 3 and member is None:
            return self._of_all_runs(f, weight.squeeze(1), bias.squeeze(1), heads)
        if own and member is None and f.is_cuda:  # with a run axis of one: one product instead of two
            out = self._of_all_runs(f.unsqueeze(0), weight, bias, heads)
            assert out.own_logits is not None
            return Outputs(out.logits.squeeze(0), out.own_logits.squeeze(0))

        def predict(z: Tensor, member: Tensor | None) -> Tensor:
            """(..., B, F) -> (..., B, C)"""
            out = _linear(z, weight.flatten(-3, -2), bias.flatten(-2)).unflatten(
                -1, bias.shape[-2:]
            )  # (..., B, n, C)
            out = self.mask_absent(out, heads)
            if member is None:
                return out.squeeze(-2)
            pick = member.unsqueeze(-1).unsqueeze(-1).expand(*out.shape[:-2], 1, out.shape[-1])
            return out.gather(-2, pick).squeeze(-2)

        logits = predict(f.sum(-3) if self.learners > 1 else f.squeeze(-3), member)
        if not own:
            return Outputs(logits, None)
        if self.learners == 1:
            return Outputs(logits, logits.unsqueeze(-3))
        flat = f.flatten(-3, -2)  # (..., K * B, F): one product for all learners
        members = None if member is None else member.repeat(*(1,) * (member.ndim - 1), self.learners)
        return Outputs(logits, predict(flat, members).unflatten(-2, (self.learners, -1)))

    def _of_all_runs(self, f: Tensor, weight: Tensor, bias: Tensor, heads: Tensor) -> Outputs:
        """Predict with one head for all runs: the logits of the sum are the sum of own logits, with one bias."""
        own = own_logits(f, weight, bias)
        if self.learners == 1:
            logits = own.squeeze(1)
        else:
            logits = per_run(lambda z, b: z.sum(1) - (self.learners - 1) * b.unsqueeze(1), 1, own, bias)
        return Outputs(self.mask_absent(logits, heads), self.mask_absent(own, heads))


def _selected(views: Mapping[str, Tensor], name: str, heads: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights (..., n, C, F) and biases (..., n, C) of the heads in use."""
    weight, bias = views[f"{name}.weight"], views[f"{name}.bias"]
    if isinstance(views, InUse):
        return weight, bias
    return weight.index_select(-3, heads), bias.index_select(-2, heads)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x (..., B, F) times weight (..., C, F) plus bias (..., C), each run with its own."""
    if wide.wide_available(x, weight) and weight.ndim in (2, x.ndim):
        flat = x.reshape(1, -1, x.shape[-1]) if weight.ndim == 2 else x.flatten(0, -3)
        out = wide.wide_product(flat, weight.reshape(-1, *weight.shape[-2:]), bias.reshape(-1, bias.shape[-1]))
        return out.view(*x.shape[:-1], -1)
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    return per_run(lambda z, w, b: z @ w.transpose(-2, -1) + b.unsqueeze(-2), 1, x, weight, bias)
