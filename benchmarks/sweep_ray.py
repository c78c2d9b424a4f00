"""Compare a sweep on a local Ray cluster whose worker is killed with the same sweep in one process.

    python benchmarks/sweep_ray.py --out benchmarks/sweep-ray.json

60 runs of digits on 2 workers. Once a job has a checkpoint, its process is killed (SIGKILL). The sweep must continue
by itself, and every number and every weight be that of a sweep that trains one job after another in one process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kenyon.experiments.results import Result
from kenyon.experiments.store import files_below
from kenyon.sweep.jobs import Outcome
from kenyon.sweep.leases import Leases
from kenyon.sweep.plan import Record
from kenyon.sweep.storage import FLEETS, Storage, open_storage
from kenyon.training.checkpoint import read_head
from kenyon.version import __version__

EXPERIMENT = """benchmark = "digits"
method = ["ewc", "caf-ewc"]
seeds = 15

[settings]
lambda_sp = [1e5, 1e6]
epochs = {epochs}
"""


def start(file: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "kenyon", "sweep", str(file), "--out", str(out), "--no-fwt", *options]
    return subprocess.Popen([*words, "--device", "cpu", "--json"], stdout=subprocess.DEVNULL)


def kill_one(storage: Storage, sweep: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait until a job has a checkpoint, and kill its worker."""
    began = time.monotonic()
    while sweep.poll() is None:
        for fleet, holder in Leases(storage).held().items():
            states = sorted((storage.local / FLEETS / fleet).rglob("state-*[0-9a-f].safetensors"))
            if holder is not None and states:
                position = json.loads(read_head(states[0])["position"])
                os.kill(holder.process, signal.SIGKILL)
                where = {"task": position["phase"] + 1, "epoch": position["epoch"]}
                return {"fleet": fleet, "seconds": round(time.monotonic() - began, 1), "state": where}
        time.sleep(0.2)
    raise SystemExit("The sweep ended before any fleet had a state: take more --epochs.")


def numbers(out: Path) -> dict[str, Any]:
    results = {str(path.relative_to(out)): Result.load(path) for path in files_below(out, "result.json")}
    return {name: (result.config, result.runs) for name, result in results.items()}


def weights(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in files_below(out, "weights-*.safetensors")}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("sweep-ray.json"))
    options.add_argument("--epochs", type=int, default=160)
    chosen = options.parse_args()
    import ray

    with tempfile.TemporaryDirectory() as folder:
        file, there, here = (Path(folder) / name for name in ("experiment.toml", "ray", "here"))
        file.write_text(EXPERIMENT.format(epochs=chosen.epochs))
        began = time.monotonic()
        sweep = start(file, there, "--ray", "local", "--workers", "2")
        storage = open_storage(there)
        killed = kill_one(storage, sweep)
        assert sweep.wait() == 0, "the sweep did not end well"
        with_ray = time.monotonic() - began
        record = Record.load(storage)
        assert record is not None
        mark = Outcome.load(storage, killed["fleet"])
        assert mark is not None and mark.end == "done"
        began = time.monotonic()
        assert start(file, here).wait() == 0
        alone = time.monotonic() - began
        body = {
            "format": 1,
            "what": "60 runs of digits on a local Ray of 2 workers, one killed (SIGKILL) once its fleet had a state",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "versions": {
                "kenyon": __version__,
                "ray": ray.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "epochs": chosen.epochs,
            "runs": sum(len(runs) for _, runs in numbers(there).values()),
            "fleets": len(record.fleets),
            "killed": killed,
            "same_numbers": numbers(there) == numbers(here),
            "same_weights": weights(there) == weights(here),
            "weights": len(weights(here)),
            "seconds_ray": round(with_ray, 1),
            "seconds_one_process": round(alone, 1),
            "cores": os.cpu_count(),
        }
    chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(body, indent=1))


if __name__ == "__main__":
    main()
