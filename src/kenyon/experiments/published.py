"""Published average accuracies in per cent, over 5 runs, as data.

CAF on EWC: Supplementary Table 5 (K = 5). The others: AFEC (NeurIPS 2021), Table 5, on the same splits and networks;
EWC on Omniglot from its text.
"""

from __future__ import annotations

from kenyon.experiments.config import Config
from kenyon.experiments.results import Result

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
    "omniglot": {"ewc": 76.50, "caf-ewc": 88.71},
    "cub-200": {
        "finetune": 39.82,
        "ewc": 42.29,
        "mas": 42.56,
        "si": 42.03,
        "rwalk": 41.94,
        "pnc": 42.79,
        "agscl": 40.73,
        "ewc-af2": 43.05,
        "mas-af2": 42.93,
        "caf-ewc": 47.28,
    },
    "tiny-imagenet": {"caf-ewc": 53.85},
}

# Supplementary Table 5: CAF on EWC with another number of learners, each as wide as the parameters allow.
LEARNERS: dict[str, dict[int, float]] = {
    "s-cifar-100": {3: 55.97, 4: 56.84, 5: 57.43, 6: 57.69},
    "r-cifar-100": {3: 72.43, 4: 73.17, 5: 73.27, 6: 73.18},
    "r-cifar-10-100": {3: 80.74, 4: 80.94, 5: 81.21, 6: 81.06},
    "omniglot": {3: 86.65, 4: 89.13, 5: 88.71, 6: 88.68, 7: 87.30, 8: 86.83},
    "cub-200": {3: 46.08, 4: 47.15, 5: 47.28, 6: 48.43, 7: 48.78, 8: 48.33},
    "tiny-imagenet": {3: 52.56, 4: 53.05, 5: 53.85, 6: 54.03, 7: 54.63, 8: 54.30},
}

UNSAID = {"precision"}  # settings whose published value is not known, or does not matter


def published_for(result: Result) -> float | None:
    """The published average accuracy of a method that is run as published: nothing changed, and tested on test data.
    Points of a grid have none.
    """
    value = ACCURACY.get(result.benchmark, {}).get(result.method)
    if value is None or result.point or result.held_out:
        return None
    words, settings = Config.from_dict(result.config).changes
    return None if words or settings.keys() - UNSAID else value
