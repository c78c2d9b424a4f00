"""A benchmark of your own in one file. Run it with `kenyon run examples/own_stream.py --method ewc,caf-ewc`.

Here: drawings of the digits 0 to 5, split by eye into round, straight and mixed ones.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from kenyon.data import Group, Source
from kenyon.experiments import benchmark
from kenyon.training import Training


def little_net(width: int, learners: int) -> nn.Module:
    """Any module that maps a batch of images to feature vectors; Kenyon adds a head per task."""
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, 32), nn.ReLU())


@benchmark(
    class_counts=(2, 2, 2),  # of each task
    shape=(1, 8, 8),
    backbone=little_net,
    width=8,  # of a single learner; several learners share its number of parameters
    training=Training(epochs=10, batch=32),
    hyperparameters={"ewc": {"lambda_sp": 1e4}, "caf-ewc": {"lambda_sp": 1e4, "lambda_af": 1e-6, "gamma": 0.02}},
)
def own_stream(data: object) -> Source:
    """Digits 0 to 5 in three tasks."""
    digits = load_digits(n_class=6)
    images = torch.from_numpy(digits.images * 15.9).to(torch.uint8).unsqueeze(1)  # (N, 1, 8, 8)
    labels = torch.from_numpy(digits.target).long()
    is_test = torch.arange(len(labels)) % 5 == 0
    tasks = (Group("round", (0, 3)), Group("straight", (1, 4)), Group("mixed", (2, 5)))
    return Source("own-stream", images, labels, is_test, tuple("012345"), tasks, mean=(0.3,), std=(0.37,))
