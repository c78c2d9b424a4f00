"""Every method on the benchmark digits, and every setting."""

from __future__ import annotations

from functools import partial
from typing import Any

import kenyon
from tests.golden.cases.registry import Case, add
from tests.golden.values import Exact, Percent, Values
from tests.golden.workbench import Bench, saved

METHODS = (
    "finetune", "random-init", "ewc", "mas", "si", "rwalk", "cpr-ewc", "cpr-mas", "agscl", "ewc-af1", "ewc-af2",
    "mas-af1", "mas-af2", "mcl-ewc", "mcl-mas", "caf-ewc", "caf-mas", "pnc", "icl-ewc", "icl-mas", "discrete", "er",
    "joint", "joint-af1", "joint-mcl", "joint-caf",
)  # fmt: skip
SHORT = {"epochs": 2, "seeds": 2, "fwt": False}


def trained(bench: Bench, benchmark: str, methods: str, **asked: Any) -> Values:
    """What `kenyon.run` leaves on disk, and that it says the same."""
    results = kenyon.run(benchmark, methods, out=bench.folder, device=bench.device, **(SHORT | asked))
    found = saved(bench.folder)
    for label, result in results.items():
        found[f"{label}: labels"] = Exact([result.benchmark, result.method, len(result.runs)])
        found[f"{label}: aac"] = Percent(list(result.aac.runs) if result.aac else [])
        found[f"{label}: accuracy"] = Percent(result.accuracy)
    return found


for name in METHODS:
    add(f"digits/{name}", partial(trained, benchmark="digits", methods=name), quick=True)

SGD = {"optimiser": "sgd", "rate": 0.05}
STEP = {"schedule": "step", "validation": 0, "drop_epoch": 1}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "forward transfer": ("finetune,ewc", {"fwt": True}),
    "strengths that differ": ("caf-ewc", {"lambda_sp": [1e3, 1e5], "lambda_af": [1e-6, 1e-3]}),
    "strengths, one at a time": ("caf-ewc", {"lambda_sp": [1e3, 1e5], "lambda_af": [1e-6, 1e-3], "fleet": 1}),
    "points that train apart": ("ewc", {"epochs": [1, 2], "fisher": ["published", "exact"]}),
    "seeds chosen": ("mcl-mas", {"seeds": [7, 3, 11]}),
    "fewer tasks": ("ewc", {"tasks": 2}),
    "weights of every task": ("ewc", {"keep": "every", "tasks": 3}),
    "deterministic": ("caf-ewc", {"deterministic": True}),
    "three learners": ("caf-mas", {"learners": 3}),
    "wider": ("finetune", {"width": 40}),
    "bfloat16": ("caf-ewc,ewc", {"precision": "bfloat16"}),
    "float32": ("caf-ewc", {"precision": "float32"}),
    "first heads zero": ("ewc", {"first_heads": "zero"}),
    "diversity medium": ("mcl-ewc", {"diversity": "medium"}),
    "diversity low": ("caf-ewc", {"diversity": "low"}),
    "gate": ("caf-ewc,mcl-mas", {"gate": True}),
    "sgd": ("ewc,caf-mas", SGD),
    "sgd without momentum": ("mas", SGD | {"momentum": 0.0}),
    "sgd bounded": ("ewc,rwalk,icl-mas", SGD | {"bounded": True, "lambda_sp": 1e7}),
    "sgd carried on": ("ewc", SGD | STEP | {"carry": True}),
    "step": ("ewc,ewc-af2,pnc", STEP | {"drop": 10.0}),
    "patience": ("caf-ewc", {"epochs": 6, "patience": 1, "tasks": 3}),
    "batch": ("ewc", {"batch": 7, "rate": 3e-3}),
    "penalties from the first task": ("mas-af1,ewc", {"penalties_from": 1}),
    "fisher exact": ("ewc,pnc", {"fisher": "exact"}),
    "fisher of large images": ("ewc", {"fisher": "large"}),
    "fisher of core50": ("ewc", {"fisher": "core50"}),
    "omega of large images": ("mas", {"omega": "large"}),
    "omega of core50": ("mas", {"omega": "core50"}),
    "accumulate average": ("mas,ewc", {"accumulate": "average"}),
    "accumulate sum": ("ewc,icl-ewc", {"accumulate": "sum"}),
    "accumulate last": ("caf-ewc", {"accumulate": "last"}),
    "rwalk of its paper": ("rwalk", {"rwalk_form": "paper"}),
    "af1 by learner": ("caf-ewc", {"af1": "learner", "lambda_af": 1e-3}),
    "af1 uniform": ("caf-mas", {"af1": "uniform", "lambda_af": 1e-3}),
    "af1 on open heads": ("ewc-af1,caf-ewc", {"af1_heads": "open", "lambda_af": 1e-3}),
    "af1 on no heads": ("mas-af1", {"af1_heads": "none", "lambda_af": 1e-3}),
    "af1 from the first task": ("mas-af1", {"from_first": True, "lambda_af": 1e-3}),
    "af2 validated": ("ewc-af2", {"af2_validated": True}),
    "af2 not validated": ("mas-af2", {"af2_validated": False}),
    "af2 that learns": ("ewc-af2", {"af2_first": "learned"}),
    "af2 that waits": ("mas-af2", {"af2_first": "waits"}),
    "afs uniform": ("caf-ewc", {"afs": "uniform", "gamma": 0.2}),
    "afs of the paper": ("caf-ewc,joint-caf", {"afs_form": "paper", "gamma": 0.2}),
    "joint, af1": ("joint-af1", {"lambda_af": 1e-2}),
    "pnc online": ("pnc", {"decay": 0.9}),
    "pnc that goes on": ("pnc", {"reinit": False, "temperature": 4.0}),
    "replay mixed": ("er", {"replay": "mixed", "memory": 5, "replay_batch": 16}),
    "agscl": ("agscl", {"mu": 1e-2, "rho": 0.6, "eta": 0.5, "lambda_sp": 50.0}),
}  # fmt: skip
LONGER = {"strengths, one at a time", "points that train apart", "step", "patience", "sgd bounded", "af2 validated"}
for name, (methods, asked) in SETTINGS.items():
    case: Case = partial(trained, benchmark="digits", methods=methods, **asked)
    add(f"digits, set/{name}", case, quick=name not in LONGER)

for name in ("finetune", "ewc", "mas-af2", "agscl", "pnc", "er", "caf-ewc", "icl-mas"):
    add(
        f"digits-conv/{name}",
        partial(trained, benchmark="digits-conv", methods=name, tasks=2, epochs=1),
        quick=name == "ewc",
    )
