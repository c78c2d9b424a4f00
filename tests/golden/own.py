"""A benchmark and a method of one's own in one file, as version 0.1 took them."""

# ruff: noqa: I001 - results of version 0.1 name a digest of this code, in which the order of imports counts

import torch
from sklearn.datasets import load_digits
from torch import nn

from kenyon.experiments import benchmark
from kenyon.importance import fisher_published
from kenyon.methods import Method, method
from kenyon.penalties import ActiveForgetting1, Confidence, StabilityProtection, Strength
from kenyon.streams import Group, Source
from kenyon.train import Training


def little_net(width: int, learners: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 8), nn.ReLU())


@benchmark(
    class_counts=(2, 2, 2),
    shape=(1, 8, 8),
    backbone=little_net,
    width=6,
    training=Training(epochs=3, batch=32, validation=0.2),
    hyperparameters={"pnc": {"lambda_sp": 1e4}, "ewc": {"lambda_sp": 1e4}},
)
def little_digits(data: object) -> Source:
    """Digits 0 to 5 in three tasks."""
    digits = load_digits(n_class=6)
    images = torch.from_numpy(digits.images * 15.9).to(torch.uint8).unsqueeze(1)  # (N, 1, 8, 8)
    labels = torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % 5 == 0
    tasks = (Group("round", (0, 3)), Group("straight", (1, 4)), Group("mixed", (2, 5)))
    return Source("little-digits", images, labels, test, tuple("012345"), tasks, mean=(0.3,), std=(0.37,))


@method
def ewc_af1_cpr(lambda_sp: Strength = 1e6, lambda_af: Strength = 1e-6, lambda_cpr: Strength = 0.1) -> Method:
    """EWC with AF-1 and less confident predictions."""
    protect, forget = StabilityProtection(lambda_sp), ActiveForgetting1(lambda_af)
    return Method(fisher_published(), (protect, forget, Confidence(lambda_cpr)))
