"""A signal of two channels: tasks tell tones apart by their frequency, a network of 1-D convolutions.

python examples/signal_1d.py
"""

import numpy as np
from side_by_side import by_class, compare, options
from torch import nn

args = options(tasks=5, per_class=100, epochs=30, seeds=3, width=16)
rng, time = np.random.default_rng(0), np.linspace(0, 1, 128)
y = np.arange(10 * 2 * args.per_class) % 10
phase = 2 * np.pi * ((4 + 2 * y[:, None]) * time + rng.random((len(y), 1)))
X = np.stack([np.sin(phase), np.cos(phase)], axis=1) + rng.normal(0, 1, (len(y), 2, 128))


def backbone(width: int) -> nn.Module:
    layers = [nn.Conv1d(2, width, 9, stride=2), nn.ReLU(), nn.Conv1d(width, width, 9, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(4 * width, 32), nn.ReLU())


compare(by_class(X, y, args), backbone, args, rate=3e-3)
