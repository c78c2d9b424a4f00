"""A table whose classes arrive two at a time: scikit-learn's digits as rows of 64 numbers, a dense network.

python examples/table.py
"""

from side_by_side import by_class, compare, options
from sklearn.datasets import load_digits
from torch import nn

args = options(tasks=5, per_class=20, epochs=30, seeds=5, width=32)
X, y = load_digits(return_X_y=True)


def backbone(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64), nn.ReLU())


compare(by_class(X, y, args), backbone, args)
