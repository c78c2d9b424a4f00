"""Experiments that are killed at random moments, as often as asked, and end as if nothing had happened.

A server process imports everything once and forks a child for every attempt, so that a kill costs tenths of a second.
A child is killed from outside after a random time, or kills itself at a random moment of a save: before it writes,
with half of the bytes written, before it syncs, before and after it renames. SIGKILL in both cases: nothing is
flushed and no handler runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

STEADY = 0.25  # share of attempts that are left alone for longer: without them a slow machine would never get on


def call_of(out: str, seed: int, epochs: int) -> dict[str, Any]:
    """One method as a single configuration, one as a grid whose points train together."""
    return {
        "benchmark": "digits",
        "methods": ["finetune", "caf-ewc"],
        "seeds": [seed, seed + 1],
        "tasks": 2,
        "device": "cpu",
        "fwt": False,
        "out": out,
        "overrides": {
            "epochs": epochs,
            "width": 2,
            "learners": 2,
            "batch": 32,
            "lambda_sp": [10.0, 1e4],
            "lambda_af": 1e-4,
            "gamma": 0.02,
        },
    }


def train(call: dict[str, Any]) -> None:
    """With a state after every epoch."""
    from kenyon.experiments import execute, plan, training

    training.SAVE_EVERY = training.REST = 0.0
    execute(plan(**call))


def die_while_saving(deed: int) -> None:
    """Kill this process at so-many-th of its deeds on the disk."""
    left = [deed]
    synced, replaced, opened = os.fsync, Path.replace, Path.open

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(handle: int) -> None:
        count()
        synced(handle)

    def replace(path: Path, target: Any) -> Path:
        count()
        done = replaced(path, target)
        count()
        return done

    def opening(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        file = opened(path, mode, *more, **options)
        if mode != "wb":
            return file
        count()
        writes = file.write

        class Halves:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *what: object) -> None:
                file.close()

            def write(self, data: Any) -> None:
                half = len(data) // 2
                writes(data[:half])
                file.flush()
                count()
                writes(data[half:])

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return Halves()

    os.fsync, Path.replace, Path.open = fsync, replace, opening  # type: ignore[method-assign, assignment]


def serve(out: str, kills: int, seed: int, epochs: int) -> None:
    """Print one line of JSON: kills in all, in saves and the most of one experiment; attempts; experiments finished,
    each with seeds of its own."""
    import torch

    torch.set_num_threads(1)
    import kenyon.experiments.training  # noqa: F401 - once, before the forks
    from kenyon.data import find_source

    find_source("digits").load(None)
    moments = random.Random(seed)
    told = {"kills": 0, "in_saves": 0, "attempts": 0, "experiments": 0, "most": 0, "seed": seed}
    takes = _measure(out, epochs)
    some, more = (0.3, 1.0) if epochs < 20 else (0.03, 0.1)  # of the time that a whole experiment takes
    mine = 0  # kills of the present experiment
    while True:
        finished = told["experiments"]
        call = call_of(f"{out}/killed-{finished}", 2 * finished, epochs)
        enough = told["kills"] >= kills
        saving = not enough and moments.random() < 0.5
        deed = moments.randint(1, 90) if saving else 0
        wait = 600.0 if enough or saving else takes * moments.uniform(0, more if moments.random() < STEADY else some)
        told["attempts"] += 1
        code = _attempt(call, deed, wait)
        if code == -signal.SIGKILL:
            told["kills"] += 1
            told["in_saves"] += saving
            mine += 1
            continue
        assert code == 0, f"an attempt failed with {code}; seed {seed}, {told}"
        told["experiments"] += 1
        told["most"], mine = max(told["most"], mine), 0
        if told["kills"] >= kills:
            print(json.dumps(told), flush=True)
            return


def _measure(out: str, epochs: int) -> float:
    began = time.monotonic()
    assert _attempt(call_of(f"{out}/measured", 100, epochs), 0, 600.0) == 0
    return time.monotonic() - began


def _attempt(call: dict[str, Any], deed: int, wait: float) -> int:
    """The exit code of a child, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if deed:
                die_while_saving(deed)
            train(call)
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    until = time.monotonic() + wait
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:5]))
