"""Several sweeps over one store, killed at random moments, as often as asked: they end as if nothing had happened."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kenyon.experiments.results import Result
from kenyon.experiments.store import files_below
from kenyon.sweep.storage import FLEETS, LEASES
from tests.experiments.small import numbers, weights

EXPERIMENT = """
benchmark = "digits"
method = ["ewc", "caf-ewc"]
seeds = 6

[settings]
lambda_sp = [1e5, 1e6]
epochs = {epochs}
"""
# In one process each, with a state after every epoch: the worker and its sweep die together.
SWEEP = """
import sys
import kenyon.experiments.training as training
training.SAVE_EVERY = training.REST = 0.0
from kenyon.cli import main
main()
"""


def start(file: Path, out: Path, log: Path) -> subprocess.Popen[bytes]:
    words = ["sweep", str(file), "--out", str(out), "--no-fwt", "--fleet", "3", "--device", "cpu"]
    with log.open("ab") as told:
        return subprocess.Popen([sys.executable, "-c", SWEEP, *words], stdout=subprocess.DEVNULL, stderr=told)


@pytest.mark.torture
def test_sweeps_that_are_killed_again_and_again(tmp_path: Path, record: dict[str, Any]) -> None:
    seed = time.time_ns() % 2**32
    draws, kills, killed = random.Random(seed), 12, 0
    file, out, log = tmp_path / "experiment.toml", tmp_path / "out", tmp_path / "log"
    file.write_text(EXPERIMENT.format(epochs=40))
    began = time.monotonic()
    running = [start(file, out, log) for _ in range(3)]
    while killed < kills and any(one.poll() is None for one in running):
        time.sleep(draws.uniform(1.0, 8.0))
        unlucky = draws.randrange(len(running))
        if running[unlucky].poll() is None:
            running[unlucky].kill()
            running[unlucky].wait()
            running[unlucky] = start(file, out, log)
            killed += 1
    assert [one.wait() for one in running] == [0] * len(running), (seed, log.read_text())
    assert not any((out / LEASES).glob("*")) and not any((out / FLEETS).glob("*")) and not any(out.rglob("state-*"))
    assert start(file, tmp_path / "undisturbed", log).wait() == 0
    for path in files_below(out, "result.json"):
        usual = tmp_path / "undisturbed" / path.relative_to(out)
        assert numbers(Result.load(path)) == numbers(Result.load(usual)), seed
    assert weights(out) == weights(tmp_path / "undisturbed") and len(weights(out)) == 24
    record["sweeps"] = {
        "what": "3 sweeps over one store, 24 runs of digits, SIGKILL at random moments; the bits of one sweep alone",
        "kills": killed,
        "seed": seed,
        "seconds": round(time.monotonic() - began),
    }
