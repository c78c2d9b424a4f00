"""Small tasks and quick learners for the tests of the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kenyon import ContinualLearner

Data = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def blobs(task: int, *, size: int = 60, shape: tuple[int, ...] = (6,), labels: tuple[Any, ...] | None = None) -> Data:
    """Two or more clouds of points a task, each somewhere else."""
    rng = np.random.default_rng(task)
    names = np.array(labels if labels is not None else (2 * task, 2 * task + 1))
    y = np.arange(size) % len(names)
    middle = rng.normal(0, 2, (len(names), *shape))
    return (middle[y] + rng.normal(0, 0.5, (size, *shape))).astype(np.float32), names[y]


def quick(**settings: Any) -> ContinualLearner:
    return ContinualLearner(**({"method": "ewc", "epochs": 4, "rate": 1e-2, "batch": 16, "device": "cpu"} | settings))


def taught(tasks: int = 2, **settings: Any) -> ContinualLearner:
    learner = quick(**settings)
    for task in range(tasks):
        learner.fit(*blobs(task), task=f"t{task}", test=blobs(task))
    return learner
