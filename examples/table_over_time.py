"""A table that drifts: what tells two classes apart turns month by month, and one head has to serve all months.

python examples/table_over_time.py
"""

import numpy as np
from side_by_side import compare, options
from torch import nn

args = options(tasks=6, per_class=100, epochs=30, seeds=5, width=32)


def month(number: int) -> tuple:
    """Twenty measures of two classes: two of them tell the classes apart, other ones every month."""
    rng = np.random.default_rng(number)
    y = np.arange(4 * args.per_class) % 2
    X = rng.normal(size=(len(y), 20))
    X[:, 3 * number % 20] += 3 * y
    X[:, (3 * number + 1) % 20] -= 3 * y
    half = len(y) // 2
    return f"month {number}", (X[:half], y[:half]), (X[half:], y[half:])


def backbone(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 32), nn.ReLU())


compare([month(number) for number in range(args.tasks)], backbone, args, ordered=True, heads="shared")
