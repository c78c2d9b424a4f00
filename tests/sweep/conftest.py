"""Small sweeps on digits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kenyon.experiments.results import Result
from kenyon.sweep import Sweep, carry_out, collect, open_storage, plan_sweep
from kenyon.sweep.leases import Leases
from kenyon.sweep.local import Local
from tests.cli.conftest import kenyon  # noqa: F401

EXPERIMENT = """
benchmark = "digits"
method = ["ewc", "finetune"]
seeds = 2

[settings]
lambda_sp = [10.0, 1e4]
epochs = 2
width = 2
batch = 32
"""
SETTINGS: dict[str, Any] = {"lambda_sp": [10.0, 1e4], "epochs": 2, "width": 2, "batch": 32}
Sweeping = Callable[..., dict[str, dict[str, Result]]]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def planned(experiment: Path, tmp_path: Path) -> Callable[..., Sweep]:
    def planned(out: object = tmp_path / "out", **more: Any) -> Sweep:
        return plan_sweep(experiment, open_storage(str(out)), **{"tasks": 2, "fwt": False} | more)

    return planned


@pytest.fixture
def sweeping(planned: Callable[..., Sweep]) -> Sweeping:
    def sweeping(*out: object, stop: Callable[[], bool] = lambda: False, progress: Any = None, **more: Any) -> Any:
        sweep = planned(*out, **more)
        carry_out(sweep, Local("cpu", progress=progress, stop=stop), stop=stop)
        return collect(sweep)

    return sweeping


def killing_once(sweep: Sweep) -> tuple[Callable[[], None], list[int]]:
    """For `carry_out` to call: kills the first process that is at work on a fleet, and notes which it was."""
    looking, killed = Leases(sweep.space), list[int]()

    def kill() -> None:
        for what, holder in looking.held().items():
            if not killed and holder is not None and what in {fleet.id for fleet in sweep.fleets}:
                killed.append(holder.process)
                os.kill(holder.process, signal.SIGKILL)

    sweep.space.pause = 0.05
    return kill, killed
