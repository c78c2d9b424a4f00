"""The accuracy of every task: in the end, and when it had just been learned (Supplementary Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kenyon.analysis.model import Model
from kenyon.experiments.results import Run
from kenyon.metrics import Array


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
