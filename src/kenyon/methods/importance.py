"""Importances of weights for earlier tasks, in named definitions and scales.

Gradient importances are measured once, on the training data of the finished task:

    name              batch  gradient of                      per batch       scale   dropout
    fisher_published     20  mean cross-entropy of the batch  square          20/N    on
    fisher_large         20  the same, CPR and AF-1           square          64^2/N  on
    fisher_core50        32  mean cross-entropy of the batch  square          32/N    off
    fisher_exact          1  cross-entropy of the sample      square          1/N     off
    mas                  20  sum of the logits' L2 norms      absolute value  1/N     on
    mas_large            20  sum of the logits' L2 norms      absolute value  64/N    on
    mas_core50           32  sum of the logits' L2 norms      square          32/N    off

The published Fisher squares the gradient of a batch of 20; where gradients of samples are independent, its scale is
about 1/20 of the exact one. The published lambdas belong to it; on CUB-200 and Tiny-ImageNet to the `large` ones,
where sums are divided by the number of training batches of 64 and each square counts 64 times. `path_importance` has
the importances that are accumulated along the optimization path.

Over tasks, importances are accumulated as a running average, F <- (F_t + t F) / (t + 1) with t the number of earlier
tasks, as a plain sum (the paper's equation), or as a decaying sum: a number d stands for F <- F_t + d F (online EWC).
"last" keeps the last measurement, for importances that include earlier tasks themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kenyon.backends.triton.losses import NO_CLASS, weighted_cross_entropy
from kenyon.errors import ConfigError
from kenyon.methods.penalties.strength import check_word

Accumulate = Literal["average", "sum", "last"]
Merge = Accumulate | float
# (logits (..., B, C), labels (..., B), valid (..., B) 1 or 0) -> (...): one run, or all with a leading run axis
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


def mean_cross_entropy(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the mean over valid samples. The Fisher information is its squared gradient."""
    return weighted_cross_entropy(logits, labels, valid) / valid.sum(-1).clamp(min=1)


def summed_output_norm(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Return the sum over valid samples of the L2 norms of their logits, whose gradient MAS measures."""
    present = logits.masked_fill(logits == NO_CLASS, 0.0)  # without the classes that a smaller task lacks
    return (torch.linalg.vector_norm(present, dim=-1) * valid).sum(-1)


@dataclass(frozen=True)
class GradientImportance:
    """The sum over batches b of `numerator` * reduce(gradient of the objective on b), divided by N."""

    name: str
    objective: Objective
    batch: int
    square: bool  # the squared gradient instead of its absolute value
    numerator: float
    dropout: bool
    accumulate: Merge
    penalised: bool = False  # with the gradient of the penalties, except AF-S
    factor = 0.5  # of the quadratic penalty

    def __post_init__(self) -> None:
        check_merge(self.accumulate)

    def reduce(self, gradient: Tensor) -> Tensor:
        return (gradient.square() if self.square else gradient.abs()) * self.numerator


def fisher_published(accumulate: Merge = "average") -> GradientImportance:
    """Batches of 20, dropout on, 20 g_b^2 summed over batches, divided by N: the scale of the published lambdas."""
    return GradientImportance("fisher_published", mean_cross_entropy, 20, True, 20.0, True, accumulate)


def fisher_large(accumulate: Merge = "average") -> GradientImportance:
    """As published for large images: gradient of the loss without AF-S, 64 g_b^2 over the number of 64-batches."""
    return GradientImportance("fisher_large", mean_cross_entropy, 20, True, 4096.0, True, accumulate, penalised=True)


def fisher_core50(accumulate: Merge = "average") -> GradientImportance:
    """As published for CORe50: batches of 32, dropout off."""
    return GradientImportance("fisher_core50", mean_cross_entropy, 32, True, 32.0, False, accumulate)


def fisher_exact(accumulate: Merge = "sum") -> GradientImportance:
    """The paper's equation: the squared gradient of every sample, dropout off, summed over tasks."""
    return GradientImportance("fisher_exact", mean_cross_entropy, 1, True, 1.0, False, accumulate)


def mas_large(accumulate: Accumulate = "sum") -> GradientImportance:
    """MAS in the scale published for large images, 64 times `mas`."""
    return GradientImportance("mas_large", summed_output_norm, 20, False, 64.0, True, accumulate)


def mas_core50(accumulate: Accumulate = "average") -> GradientImportance:
    """MAS as published for CORe50, which squares: batches of 32, dropout off, averaged over tasks."""
    return GradientImportance("mas_core50", summed_output_norm, 32, True, 32.0, False, accumulate)


def mas(accumulate: Accumulate = "sum") -> GradientImportance:
    """Memory-aware synapses as published: batches of 20, dropout on, |gradient of the summed output norms| / N."""
    return GradientImportance("mas", summed_output_norm, 20, False, 1.0, True, accumulate)


def accumulated(old: Tensor, new: Tensor, tasks_before: int, how: Merge) -> Tensor:
    """Return the importance of a finished task merged into that of earlier tasks."""
    check_merge(how)
    match how:
        case "average":
            return (new + tasks_before * old) / (tasks_before + 1)
        case "sum":
            return old + new
        case "last":
            return new
    return how * old + new


def check_merge(how: Merge) -> None:
    """Refuse an unknown way of accumulating importances."""
    if isinstance(how, str):
        check_word("accumulate", how, Accumulate)
    elif not 0 <= how <= 1:
        raise ConfigError(f"The decay of an importance is a number from 0 to 1, not {how}.")
