"""scikit-learn's own checks of an estimator. All that apply to a classifier are run; none is expected to fail."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from kenyon import ContinualLearner

QUICK = ContinualLearner(method="ewc", epochs=3, rate=3e-2, batch=32, device="cpu")


# A check warns of casts of its own making, and some are skipped where pandas is not installed.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([QUICK])
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
