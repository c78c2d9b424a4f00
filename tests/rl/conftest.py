from __future__ import annotations

import pytest

from kenyon.rl.environment import SUITES
from kenyon.rl.suites import ARENAS, Arena, small_mlp
from tests.cli.conftest import kenyon  # noqa: F401
from tests.rl.fleets import SHORT
from tests.rl.toys import TOYS


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Arena:
    return offered(monkeypatch)


def offered(monkeypatch: pytest.MonkeyPatch) -> Arena:
    """The toys as a benchmark by name."""
    values = {
        "ewc": {"lambda_sp": 50.0, "accumulate": "sum"},
        "caf-ewc": {"lambda_sp": 50, "lambda_af": 0, "gamma": 1},
    }
    arena = Arena("toys", small_mlp, width=12, training=SHORT, hyperparameters=values)
    monkeypatch.setitem(SUITES, "toys", TOYS)
    monkeypatch.setitem(ARENAS, "toys", arena)
    return arena
