from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kenyon.experiments.runner import execute, plan

SETTINGS = {"epochs": 2, "lambda_sp": 10.0, "lambda_af": 1e-4, "gamma": 0.02, "learners": 3, "width": 3}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, 3 tasks, 2 seeds: one network, learners with shared heads, independent ones, one per task; a grid."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("results")
    several = ["ewc", "caf-ewc", "icl-ewc", "discrete", "joint"]
    common = {"tasks": 3, "device": "cpu", "out": out, "fwt": False, "keep": "every"}
    execute(plan("digits", several, 2, overrides=SETTINGS, **common))
    execute(plan("digits", ["mas"], 1, overrides={"epochs": 1, "lambda_sp": [1.0, 2.0]}, **common))
    return out
