"""How much the learners' predictions differ, and what each of them is good at (Evaluation Metric; Fig. 3d-f).

Cos = 1 - mean_{i != j} p_i.p_j / (|p_i| |p_j|) and Euc = mean_{i != j} |p_i - p_j|, of the probabilities p_i that the
learners give alone, means over a task's test samples. A learner's expertise is its accuracy minus the learners' mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kenyon.analysis.model import Model
from kenyon.errors import ConfigError
from kenyon.experiments.results import Run
from kenyon.metrics import Array, expertise


@dataclass(frozen=True)
class Diversity:
    """How far apart the learners' predictions lie, task by task."""

    cosine: Array  # (T,)
    euclidean: Array  # (T,)


@dataclass(frozen=True)
class Expertise:
    """What each learner is good at, task by task."""

    relative: Array  # (T, K) accuracy minus the mean of the learners, in per cent
    accuracy: Array  # (T, K) of each learner alone
    together: Array  # (T,) of all


def diversity(model: Model) -> Diversity:
    """Of a model's learners on its test data (Fig. 3e, f)."""
    _several(model.learners)
    found = model.evaluation
    return Diversity(found.cosine[0].double().numpy(), found.euclidean[0].double().numpy())


def learners_expertise(model: Model) -> Expertise:
    """Of a model's learners on its test data (Fig. 3d)."""
    _several(model.learners)
    found = model.evaluation
    own = found.own_accuracy[0].double().numpy()
    return Expertise(expertise(own), own, found.accuracy[0].double().numpy())


def saved_diversity(run: Run) -> Diversity:
    """As it was measured when the run ended."""
    return Diversity(np.array(run.cosine), np.array(run.euclidean))


def saved_expertise(run: Run) -> Expertise:
    own = np.array(run.own_accuracy)
    return Expertise(expertise(own), own, run.matrix[-1])


def _several(learners: int) -> None:
    if learners < 2:
        raise ConfigError("One learner differs from nobody: diversity and expertise are of several learners.")
