"""The estimator: methods on backbones of every kind."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch

import kenyon
from tests.golden.cases.registry import add
from tests.golden.modules import MODULES, convolutions
from tests.golden.values import Bits, Exact, Percent, Values
from tests.golden.workbench import Bench, clouds, pictures, tensors

ESTIMATED = (
    "finetune", "ewc", "mas", "si", "rwalk", "caf-ewc", "caf-mas", "er", "icl-ewc", "agscl", "pnc", "ewc-af1",
    "ewc-af2", "mas-af2", "cpr-ewc", "mcl-mas", "discrete",
)  # fmt: skip
QUICK = {
    "mlp": {"caf-ewc", "ewc-af2", "er", "icl-ewc", "si"},
    "cnn": {"caf-mas", "pnc", "agscl"},
    "resnet": {"ewc"},
    "transformer": {"ewc"},
    "lstm": {"caf-ewc"},
}
NOT_ON = {"resnet": {"er"}}  # refused: batch statistics do not go with replay
WIDE = {"mlp", "cnn"}  # backbones on which every method is recorded; on others some
SOME = ("finetune", "ewc", "mas", "si", "rwalk", "caf-ewc", "er", "icl-ewc", "ewc-af2", "cpr-ewc")


def answers(learner: Any, inputs: Any, tasks: list[str]) -> Values:
    found: Values = {
        "proba": learner.predict_proba(inputs),
        "matrix": Percent(learner.accuracy_matrix()),
        "inferred": Percent(learner.accuracy_matrix("inferred")),
        "forgetting": Percent(list(learner.forgetting().values())),
        "classes": Exact(learner.classes_.tolist()),
        "tasks": Exact(learner.tasks_),
        "predictions": Bits(learner.predict(inputs).tolist()),
    }
    for task in tasks:
        found[f"proba {task}"] = learner.predict_proba(inputs, task=task)
    return found


def estimated(bench: Bench, module: str, method: str, **settings: Any) -> Values:
    """Three tasks, through a file in between; weights and importances as they are in the file."""
    backbone, data = MODULES[module]
    given: dict[str, Any] = {"epochs": 3, "batch": 16, "rate": 3e-3, "device": bench.device} | settings
    if method in ("caf-ewc", "caf-mas", "icl-ewc", "mcl-mas"):
        given = {"learners": 2} | given
    learner = kenyon.ContinualLearner(backbone() if backbone else None, method, **given)
    inputs: list[Any] = []
    path = bench.folder / "learner.safetensors"
    for task in range(3):
        x, y = data(task)
        learner.fit(x[:72], y[:72], task=f"t{task}", test=(x[72:], y[72:]))
        inputs.append(x[72:])
        if task == 1:
            learner.save(path)
            learner = kenyon.ContinualLearner.load(path, backbone() if backbone else None, device=bench.device)
    learner.save(path)
    some = np.concatenate(inputs)
    found = answers(learner, some, ["t0", "t1", "t2"]) | tensors(path, "file: ")
    if method != "discrete":
        found["task"] = Bits(learner.predict_task(some).tolist())
        reading = learner.readings(*data(0), task="t0")
        found["readings"] = Percent([100 * reading.named, 100 * reading.inferred, 100 * reading.task])
    return found


for module in [name for name in MODULES if name != "frozen"]:
    for name in ESTIMATED if module in WIDE else SOME:
        if name not in NOT_ON.get(module, ()):
            quick = name in QUICK[module]
            add(f"estimator, {module}/{name}", partial(estimated, module=module, method=name), quick=quick)

OF_SETTINGS: dict[str, dict[str, Any]] = {
    "gate": {"method": "caf-ewc", "gate": True},
    "diversity low": {"method": "caf-mas", "diversity": "low"},
    "no validation": {"method": "ewc", "validation": 0.0},
    "as they are": {"method": "mas", "standardise": False},
    "exact": {"method": "ewc", "options": {"fisher": "exact", "accumulate": "sum"}, "lambda_sp": 100.0},
    "strengths": {"method": "caf-ewc", "lambda_sp": 10.0, "lambda_af": 1e-3, "gamma": 0.5, "seed": 5},
    "bfloat16": {"method": "ewc", "precision": "bfloat16"},
    "frozen": {"method": "caf-mas", "start": "given"},
    "given": {"method": "ewc", "start": "given"},
}
for name, settings in OF_SETTINGS.items():
    module = {"given": "cnn", "frozen": "frozen"}.get(name, "mlp")
    add(f"estimator, set/{name}", partial(estimated, module=module, **settings), quick=name == "strengths")


def shared_head(bench: Bench) -> Values:
    """Tasks that arrive with `partial_fit` and share their classes, which are words."""
    learner = kenyon.ContinualLearner(None, "caf-ewc", heads="shared", epochs=2, device=bench.device)
    names = np.array(["no", "yes"])
    for task in range(3):
        x, y = clouds(0, 6, size=60)
        learner.partial_fit(x + np.float32(0.3 * task), names[y], classes=["no", "yes"])
    return {
        "proba": learner.predict_proba(x),
        "score": Percent([100 * learner.score(x, names[y])]),
        "tasks": Exact([learner.tasks_, learner.classes_.tolist()]),
    }


def unequal_tasks(bench: Bench) -> Values:
    """Tasks of different sizes, one of bytes: the first network and standardization stay."""
    learner = kenyon.ContinualLearner(convolutions(4, 1), "mas-af2", epochs=2, device=bench.device)
    for task, classes in enumerate((2, 4, 3)):
        x, y = pictures(task, 3, 8, 8, classes=classes)
        learner.fit(x, y + 10 * task, task=str(task), test=(x, y + 10 * task))
    return answers(learner, x, ["0", "1", "2"])


def exported(bench: Bench) -> Values:
    """As a program of PyTorch, which answers without Kenyon."""
    learner = kenyon.ContinualLearner(None, "caf-ewc", learners=2, epochs=1, device="cpu")
    for task in range(2):
        learner.fit(*clouds(task, 6), task=str(task))
    path, x = bench.folder / "learner.pt2", clouds(0, 6)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner.export(path, examples=x)
        program = torch.export.load(path).module()
        return {"program": np.asarray(program(torch.from_numpy(x)).detach().float())}


add("estimator, more/shared head", shared_head, quick=True)
add("estimator, more/unequal tasks", unequal_tasks, quick=True)
add("estimator, more/exported", exported, cpu_only=True)
