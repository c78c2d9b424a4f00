"""Which task a sample belongs to, where nobody says so: every head answers, and the surest is believed.

A head of C classes has the confidence c = (max p - 1/C) / (1 - 1/C): 0 where all classes are equally likely, 1 where
one is certain, however many there are. Tasks weigh as their heads are confident,

    P(task t) = c_t / sum over tasks of c,    P(class) = sum over tasks t that have it of P(task t) p_t(class),

so that with one task the probabilities are those of its head. Heads were never shown samples of other tasks, and
nothing makes them unsure there: expect far less than with the task named. Largest logits, energies, entropies and the
agreement of the learners told tasks of digits apart no better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kenyon.estimator.labels import Labels


def task_weights(heads: Sequence[Tensor]) -> Tensor:
    """P(task), (N, T), from what the heads say, (N, C_t) each."""
    chance = [1 / said.shape[1] for said in heads]
    sure = [(said.amax(1) - least) / (1 - least) for said, least in zip(heads, chance, strict=True)]
    confidence = torch.stack(sure, dim=1).clamp(min=1e-9)  # where no head is, all weigh the same
    return confidence / confidence.sum(1, keepdim=True)


def across_tasks(heads: Sequence[Tensor], labels: Sequence[Labels], classes: Labels) -> Tensor:
    """P(class), (N, C) for all classes of all tasks."""
    weights = task_weights(heads)
    found = torch.zeros(len(weights), len(classes), dtype=weights.dtype)
    for task, (said, mine) in enumerate(zip(heads, labels, strict=True)):
        places = torch.from_numpy(np.searchsorted(classes, mine))
        found.index_add_(1, places, weights[:, task : task + 1] * said)
    return found
