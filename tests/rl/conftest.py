from __future__ import annotations

import pytest

from kenyon.rl.environment import SUITES
from kenyon.rl.suites import SUITE_BENCHMARKS, SuiteBenchmark, small_mlp
from tests.cli.conftest import kenyon  # noqa: F401
from tests.rl.fleets import SHORT
from tests.rl.toys import TOYS


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> SuiteBenchmark:
    return offered(monkeypatch)


def offered(monkeypatch: pytest.MonkeyPatch) -> SuiteBenchmark:
    """The toys as a benchmark by name."""
    values = {
        "ewc": {"lambda_sp": 50.0, "accumulate": "sum"},
        "caf-ewc": {"lambda_sp": 50, "lambda_af": 0, "gamma": 1},
    }
    arena = SuiteBenchmark("toys", small_mlp, width=12, training=SHORT, hyperparameters=values)
    monkeypatch.setitem(SUITES, "toys", TOYS)
    monkeypatch.setitem(SUITE_BENCHMARKS, "toys", arena)
    return arena
