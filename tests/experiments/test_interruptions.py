"""Experiments that are interrupted, killed or diverge: nothing finished is lost, and the numbers stay the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kenyon
from kenyon.cli.show import load_results
from kenyon.experiments.runner import execute, plan
from kenyon.methods import find_method
from kenyon.train import Interrupted
from tests.experiments.small import SMALL, Counter, all_numbers, digits, numbers, stop_after, strengths_of, weights

INTERRUPTED = [
    "ewc",
    "si",
    "rwalk",
    "caf-ewc",
    "ewc-af2",
    "random-init",
    "pnc",
    "er",
    "icl-ewc",
    "discrete",
    "joint-caf",
]


@pytest.mark.parametrize("method", INTERRUPTED)
def test_interrupted_and_run_again_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    more = {"epochs": 2, "batch": 64, **({"learners": 2} if find_method(method).multi else {})}
    whole = digits(tmp_path / "whole", [method], **more)[method]
    for calls in (0, 1) if method == "joint-caf" else (1, 4):  # joint training has one phase
        out, counter = tmp_path / str(calls), Counter()
        with pytest.raises(Interrupted):
            digits(out, [method], stop=stop_after(calls), **more)
        assert not (out / "digits" / method / "result.json").exists()
        again = digits(out, [method], progress=counter, **more)[method]
        assert numbers(again) == numbers(whole)
        assert [fleet[2] > 0 for fleet in counter.fleets] == [True]  # it went on, it did not begin anew
        assert not list((out / "digits" / method).glob("state-*"))
        for seed in (0, 1):
            file = f"digits/{method}/weights-{seed}.safetensors"
            assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    """One epoch a session."""
    whole = digits(tmp_path / "whole", epochs=3)["ewc"]
    sessions = 0
    while True:
        sessions += 1
        try:
            result = digits(tmp_path / "pieces", epochs=3, stop=lambda: True)["ewc"]
            break
        except Interrupted:
            assert sessions < 20
    assert sessions > 5
    assert numbers(result) == numbers(whole)


def test_an_interrupted_fleet_is_continued_beside_new_seeds(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, seeds=[1, 2], epochs=2, stop=lambda: True)
    counter = Counter()
    result = digits(tmp_path, seeds=[0, 1, 2], epochs=2, progress=counter)["ewc"]
    assert [(f[1], f[2] > 0) for f in counter.fleets] == [((1, 2), True), ((0,), False)]
    assert numbers(result) == numbers(digits(tmp_path / "other", seeds=3, epochs=2)["ewc"])


def test_a_run_that_diverges_is_in_the_result(tmp_path: Path) -> None:
    result = digits(tmp_path, ["finetune"], rate=1e30, epochs=3)["finetune"]
    assert all(r.diverged is not None and r.diverged[0] == 0 for r in result.runs)
    assert result.aac is None and result.complete_runs == []
    assert numbers(digits(tmp_path, ["finetune"], rate=1e30, epochs=3)["finetune"]) == numbers(result)


DRIVER = """
import json, sys, torch
torch.set_num_threads(1)
import kenyon.experiments.training as training
from kenyon.experiments import execute, plan
training.SAVE_EVERY = training.REST = 0.0
print("ready", flush=True)
execute(plan(**json.loads(sys.argv[1])))
"""


def test_killed_and_started_again_equals_undisturbed(tmp_path: Path) -> None:
    """SIGKILL at random moments: no handler runs and nothing is flushed. States are saved after every epoch.

    One method is a single configuration, the other a grid whose points train together.
    """
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    env = os.environ | {"PYTHONPATH": str(Path(kenyon.__file__).parents[1])}
    small = SMALL | strengths_of(["caf-ewc"]) | {"epochs": 8, "learners": 2, "batch": 32, "lambda_sp": [10.0, 1e4]}
    call = {
        "benchmark": "digits",
        "methods": ["finetune", "caf-ewc"],
        "seeds": 2,
        "tasks": 2,
        "device": "cpu",
        "fwt": False,
    }
    call |= {"overrides": small}

    began = time.monotonic()
    execute(plan(**call, out=tmp_path / "whole"))  # type: ignore[arg-type]
    takes = time.monotonic() - began
    seed = time.time_ns()
    moments = random.Random(seed)
    last, kills = False, 0
    while True:
        command = [sys.executable, str(driver), json.dumps(call | {"out": str(tmp_path / "killed")})]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            _, errors = process.communicate(timeout=100 if last else moments.uniform(0.05, 0.35) * takes)
            assert process.returncode == 0, errors
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills += 1
            last = kills == 2
    assert kills >= 1, seed
    found = [load_results(tmp_path / out)["digits"] for out in ("whole", "killed")]
    assert list(found[0]) == ["caf-ewc[lambda_sp=10]", "caf-ewc[lambda_sp=10000]", "finetune"]
    assert all_numbers(found[0]) == all_numbers(found[1]), seed
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed"), seed
    assert not list((tmp_path / "killed").rglob("state-*")), seed
