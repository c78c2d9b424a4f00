"""The paper's measures of accuracy matrices. Accuracies are in per cent.

A matrix A has A[t, i], the test accuracy of task i after learning task t (both from 0); values that were not measured
are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


def average_accuracy(matrix: Array) -> float:
    """AAC = 1/T sum_i A[T, i], the average accuracy of all tasks in the end."""
    return float(np.mean(matrix[-1]))


def forward_transfer(matrix: Array, alone: Array) -> float:
    """FWT = 1/(T-1) sum_{i>=2} A[i-1, i] - a_i, with a_i the accuracy of task i learned from a random start.

    Published definition: A[i-1, i] is measured before task i is learned, so with a head of its own per task it is
    near chance and FWT is strongly negative; compare methods by their differences.
    """
    T = len(matrix)
    if T < 2:
        return float("nan")
    return float(np.mean([matrix[i - 1, i] - alone[i] for i in range(1, T)]))


def learning_accuracy(matrix: Array) -> float:
    """Mean of A[i, i], the accuracy of each task right after it was learned: plasticity. Not in the paper."""
    return float(np.mean(np.diagonal(matrix)))


def backward_transfer(matrix: Array) -> float:
    """BWT = 1/(T-1) sum_{i<T} A[T, i] - A[i, i], the effect of later tasks on earlier ones; negative: forgetting."""
    T = len(matrix)
    if T < 2:
        return float("nan")
    return float(np.mean([matrix[-1, i] - matrix[i, i] for i in range(T - 1)]))


def average_curve(matrix: Array) -> Array:
    """Mean accuracy of the tasks seen so far, after each task: entry t is mean(A[t, :t+1])."""
    return np.array([np.mean(matrix[t, : t + 1]) for t in range(len(matrix))])


def expertise(own_accuracy: Array) -> Array:
    """Each learner's accuracy minus the mean of all learners, (T, K) -> (T, K)."""
    return own_accuracy - own_accuracy.mean(axis=1, keepdims=True)


def prediction_diversity(p: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and Euc of K > 1 learners' predictions p (K, B, C), means over pairs and samples."""
    cosine, euclidean = sample_diversity(p)
    return cosine.mean(-1), euclidean.mean(-1)


def sample_diversity(p: Tensor) -> tuple[Tensor, Tensor]:
    """Cos and Euc of K > 1 learners' predictions p (..., K, B, C) for every sample, (..., B): means over pairs.

    Cos = 1 - mean_{i != j} p_i.p_j / (|p_i| |p_j|), Euc = mean_{i != j} |p_i - p_j|.
    """
    K = p.shape[-3]
    off = (~torch.eye(K, dtype=torch.bool, device=p.device)).unsqueeze(-1)
    unit = torch.nn.functional.normalize(p, dim=-1)
    cosine = torch.einsum("...ibc,...jbc->...ijb", unit, unit)
    distance = torch.linalg.vector_norm(p.unsqueeze(-4) - p.unsqueeze(-3), dim=-1)  # (..., K, K, B)
    pairs = K * (K - 1)
    return 1 - (cosine * off).sum((-3, -2)) / pairs, (distance * off).sum((-3, -2)) / pairs


@dataclass(frozen=True)
class Summary:
    """A measure over runs: mean, standard error and the value of every run."""

    mean: float
    sem: float  # standard error of the mean; NaN for a single run
    runs: tuple[float, ...]

    @classmethod
    def of(cls, values: list[float]) -> Summary | None:
        """Summarize the finite values; None if there are none."""
        finite = [v for v in values if np.isfinite(v)]
        if not finite:
            return None
        sem = float(np.std(finite, ddof=1)) / sqrt(len(finite)) if len(finite) > 1 else float("nan")
        return cls(float(np.mean(finite)), sem, tuple(values))

    @property
    def count(self) -> int:
        """The number of runs that have a value."""
        return sum(map(isfinite, self.runs))

    def text(self, digits: int = 2) -> str:
        """Return "mean ± standard error", or the mean alone for a single run."""
        if not np.isfinite(self.sem):
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ± {self.sem:.{digits}f}"


def rounded(summary: Summary | None) -> dict[str, Any] | None:
    """Return a summary as it is saved in files."""
    if summary is None:
        return None
    return {
        "mean": round(summary.mean, 4),
        "sem": round(summary.sem, 4),
        "runs": [round(v, 4) for v in summary.runs],
    }
