"""Domains of your own in one file. Run it with `kenyon run examples/own_domains.py --method finetune,ewc,caf-ewc`.

Here: handwritten digits as a table of 64 columns, which every domain has in another order. All domains have the same
ten classes and share one head: nobody says which domain a sample comes from.
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from kenyon.data import Domains, Source, from_arrays
from kenyon.experiments import benchmark
from kenyon.training import Training

DOMAINS = 4


def dense(width: int, learners: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64), nn.ReLU())


@benchmark(
    backbone=dense,
    width=64,
    training=Training(epochs=15, batch=32, rate=3e-3),
    hyperparameters={
        "finetune": {},
        "ewc": {"lambda_sp": 1e4},
        "caf-ewc": {"lambda_sp": 1e4, "lambda_af": 1e-6, "gamma": 0.02},
    },
)
def own_domains(data: object) -> Source:
    """Digits whose 64 pixels every domain shows in another order."""
    x, y = load_digits(return_X_y=True)
    domain = np.arange(len(y)) % DOMAINS
    for d in range(1, DOMAINS):
        x[domain == d] = x[domain == d][:, np.random.default_rng(d).permutation(64)]
    return from_arrays(x, y, Domains(domain), name="own-domains")
