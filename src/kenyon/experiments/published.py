"""Hyper-parameters and results as published, as data.

Hyper-parameters: Supplementary Table 6, the selected values. It has no rows for AF-1 and AF-2 on a single learner
and for MCL without AF: there lambda_SP is that of the plain method (for MCL, that of CAF), and lambda_AF is the
value of the authors' scripts (AF-1 1e-6, AF-2 1). Results: average accuracy in per cent over 5 runs; CAF on EWC
from Supplementary Table 5, the others from AFEC (NeurIPS 2021), Table 5, on the same splits and networks.
"""

from __future__ import annotations

Values = dict[str, float]


def _family(
    ewc: float,
    mas: float,
    si: float,
    caf_ewc: tuple[float, float, float],
    caf_mas: tuple[float, float, float],
) -> dict[str, Values]:
    """All methods of a benchmark from its row of values; CAF rows are (lambda_sp, lambda_af, gamma)."""
    caf = ("lambda_sp", "lambda_af", "gamma")
    return {
        "finetune": {},
        "joint": {},
        "random-init": {},
        "ewc": {"lambda_sp": ewc},
        "mas": {"lambda_sp": mas},
        "si": {"lambda_sp": si},
        "ewc-af1": {"lambda_sp": ewc, "lambda_af": 1e-6},
        "ewc-af2": {"lambda_sp": ewc, "lambda_af": 1.0},
        "mas-af1": {"lambda_sp": mas, "lambda_af": 1e-6},
        "mas-af2": {"lambda_sp": mas, "lambda_af": 1.0},
        "mcl-ewc": {"lambda_sp": caf_ewc[0]},
        "mcl-mas": {"lambda_sp": caf_mas[0]},
        "caf-ewc": dict(zip(caf, caf_ewc, strict=True)),
        "caf-mas": dict(zip(caf, caf_mas, strict=True)),
    }


HYPERPARAMETERS: dict[str, dict[str, Values]] = {
    "s-cifar-100": _family(25000, 16, 10, (10000, 1e-8, 0.01), (8, 1e-8, 0.02)),
    "r-cifar-100": _family(25000, 4, 10, (5000, 1e-8, 0.02), (4, 1e-8, 0.02)),
    "r-cifar-10-100": _family(25000, 4, 8, (10000, 1e-8, 0.02), (8, 1e-8, 0.02)),
}

ACCURACY: dict[str, Values] = {
    "s-cifar-100": {
        "finetune": 28.40,
        "ewc": 51.74,
        "mas": 52.18,
        "si": 51.97,
        "ewc-af2": 55.24,
        "mas-af2": 54.89,
        "caf-ewc": 57.43,
    },
    "r-cifar-100": {
        "finetune": 33.53,
        "ewc": 69.18,
        "mas": 69.41,
        "si": 69.21,
        "ewc-af2": 72.29,
        "mas-af2": 71.20,
        "caf-ewc": 73.27,
    },
    "r-cifar-10-100": {
        "finetune": 37.81,
        "ewc": 77.75,
        "mas": 77.39,
        "si": 76.69,
        "ewc-af2": 81.25,
        "mas-af2": 80.01,
        "caf-ewc": 81.21,
    },
}
