"""Learners that are saved: their settings, backbones and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import kenyon
from tests.golden.modules import MODULES
from tests.golden.values import Bits, Exact, Percent, Values
from tests.golden.workbench import tensors

# By name: the module, and the learner's settings.
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp-caf-ewc": ("mlp", {"method": "caf-ewc", "learners": 2}),
    "mlp-si": ("mlp", {"method": "si"}),
    "mlp-pnc": ("mlp", {"method": "pnc"}),
    "mlp-icl-mas": ("mlp", {"method": "icl-mas", "learners": 2}),
    "mlp-caf-mas-gate": ("mlp", {"method": "caf-mas", "learners": 2, "gate": True, "options": {"afs": "uniform"}}),
    "cnn-er": ("cnn", {"method": "er", "options": {"memory": 4, "replay_batch": 8}}),
    "cnn-agscl": ("cnn", {"method": "agscl"}),
    "cnn-mas-af2-given": ("cnn", {"method": "mas-af2", "start": "given"}),
    "resnet-ewc": ("resnet", {"method": "ewc", "lambda_sp": 100.0}),
    "transformer-ewc-af2": ("transformer", {"method": "ewc-af2"}),
    "lstm-rwalk": ("lstm", {"method": "rwalk"}),
    "shared-caf-ewc": ("mlp", {"method": "caf-ewc", "learners": 2, "heads": "shared"}),
    "discrete": ("mlp", {"method": "discrete"}),
}
REGIME: dict[str, Any] = {"epochs": 2, "batch": 16, "rate": 3e-3, "device": "cpu", "seed": 3}


def backbone_of(name: str) -> nn.Module:
    """Narrow, so that files are small."""
    make = MODULES[LEARNERS[name][0]][0]
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()) if make is None else make()


def task_of(name: str, task: int) -> tuple[Any, Any]:
    """Samples and labels; of one learner words."""
    x, y = MODULES[LEARNERS[name][0]][1](task)
    if name == "shared-caf-ewc":
        y = y - 2 * task
    if name == "mlp-si":
        return x[:42], np.array([f"class {label}" for label in y[:42]])
    return x[:42], y[:42]


def teach(learner: Any, name: str, task: int) -> None:
    x, y = task_of(name, task)
    learner.fit(x[:36], y[:36], task=f"task {task}", test=(x[36:], y[36:]))


def taught(name: str, tasks: int = 2) -> Any:
    learner = kenyon.ContinualLearner(backbone_of(name), **(REGIME | LEARNERS[name][1]))
    for task in range(tasks):
        teach(learner, name, task)
    return learner


def load(name: str, folder: Path) -> Any:
    return kenyon.ContinualLearner.load(folder / f"{name}.safetensors", backbone_of(name), device="cpu")


def answers(learner: Any, name: str) -> Values:
    """What a learner says of samples of all its tasks."""
    inputs = np.concatenate([task_of(name, task)[0][36:] for task in range(len(learner.tasks_))])
    found: Values = {
        "matrix": Percent(learner.accuracy_matrix()),
        "tasks": Exact([learner.tasks_, learner.classes_.tolist()]),
        "proba": learner.predict_proba(inputs),
        "predictions": Bits(learner.predict(inputs).tolist()),
        "parameters": Exact({k: v for k, v in sorted(learner.get_params(deep=False).items()) if k != "backbone"}),
    }
    for task in learner.tasks_:
        found[f"proba {task}"] = learner.predict_proba(inputs, task=task)
    return found


def contents(learner: Any, path: Path) -> Values:
    learner.save(path)
    return tensors(path)
