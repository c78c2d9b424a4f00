"""Published average accuracies in per cent, over 5 runs, as data.

CAF on EWC: Supplementary Table 5 (K = 5). The others: AFEC (NeurIPS 2021), Table 5, on the same splits and networks.
"""

from __future__ import annotations

ACCURACY: dict[str, dict[str, float]] = {
    "s-cifar-100": {
        "finetune": 28.40,
        "ewc": 51.74,
        "mas": 52.18,
        "si": 51.97,
        "rwalk": 49.62,
        "pnc": 52.88,
        "agscl": 53.19,
        "ewc-af2": 55.24,
        "mas-af2": 54.89,
        "caf-ewc": 57.43,
    },
    "r-cifar-100": {
        "finetune": 33.53,
        "ewc": 69.18,
        "mas": 69.41,
        "si": 69.21,
        "rwalk": 66.90,
        "pnc": 70.21,
        "agscl": 69.99,
        "ewc-af2": 72.29,
        "mas-af2": 71.20,
        "caf-ewc": 73.27,
    },
    "r-cifar-10-100": {
        "finetune": 37.81,
        "ewc": 77.75,
        "mas": 77.39,
        "si": 76.69,
        "rwalk": 73.64,
        "pnc": 78.29,
        "agscl": 80.42,
        "ewc-af2": 81.25,
        "mas-af2": 80.01,
        "caf-ewc": 81.21,
    },
}
