"""SIGKILL at random moments, half of them inside a save: the end is bit for bit that of an undisturbed experiment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kenyon
from kenyon.experiments import execute, plan
from kenyon.experiments.compare import load_results
from tests.experiments.small import all_numbers, weights
from tests.torture.killing import call_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ROOT = Path(__file__).parents[2]


def killed(out: Path, kills: int, epochs: int) -> dict[str, Any]:
    """Kill experiments so many times, then compare every one with an undisturbed one."""
    seed = time.time_ns() % 2**32
    env = os.environ | {
        "PYTHONPATH": f"{Path(kenyon.__file__).parents[1]}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.torture.killing", str(out), str(kills), str(seed), str(epochs)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for number in range(told["experiments"]):
        whole, ended = out / f"whole-{number}", out / f"killed-{number}"
        execute(plan(**call_of(str(whole), 2 * number, epochs)))
        found = [load_results(folder)["digits"] for folder in (whole, ended)]
        assert list(found[0]) == ["caf-ewc[lambda_sp=10]", "caf-ewc[lambda_sp=10000]", "finetune"]
        assert all_numbers(found[0]) == all_numbers(found[1]), told
        assert weights(whole) == weights(ended), told
        left = [path.name for path in ended.rglob("*") if path.is_file() and path.suffix not in (".json",)]
        assert all(name.startswith("weights-") or name.endswith(".tmp") for name in left), (left, told)
    return told


def test_killed_a_few_times(tmp_path: Path) -> None:
    told = killed(tmp_path, 4, epochs=4)
    assert told["kills"] >= 4


@pytest.mark.torture
def test_killed_fifty_times_in_a_row(tmp_path: Path, record: dict[str, Any]) -> None:
    began = time.monotonic()
    told = killed(tmp_path, 50, epochs=200)
    assert told["kills"] >= 50 and told["in_saves"] >= 5
    del told["attempts"]
    record["killing"] = {
        "what": "digits, finetune and a grid of caf-ewc, 2 seeds, a state after every epoch, SIGKILL at random "
        "moments, some of them inside a save; every experiment ends with the bits of an undisturbed one",
        **told,
        "seconds": round(time.monotonic() - began),
    }
