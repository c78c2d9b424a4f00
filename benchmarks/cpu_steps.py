"""Time training steps of large networks on a CPU, as they are and without single optimizations, alternating.

    python benchmarks/cpu_steps.py tiny-imagenet:ewc:1 tiny-imagenet:caf-ewc:1 --out cpu-steps.json

Each argument is benchmark:method:runs, as for large_steps.py. The ways:

    as it is
    rows whole         rows of weights are moved whole, not in pieces that the cache holds
    cut by samples     dense layers of many weights too are computed in parts of a batch, not in shares
    bfloat16           learners compute in bfloat16: --set precision=bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from large_steps import SOURCES

from kenyon.backends.cpu import looped as shares
from kenyon.bench.subject import Subject
from kenyon.data.sources import Source
from kenyon.experiments.config import configure
from kenyon.training import choose_device
from kenyon.training.device import on_device
from kenyon.utils import threads as pieces

PIECE, MANY = pieces.CHUNK, shares.MANY
WAYS = ("as it is", "rows whole", "cut by samples", "bfloat16")
TURNS, STEPS = 4, 4


def prepared(name: str, method: str, runs: int, source: Source, way: str) -> Subject:
    config = configure(name, method)
    if way == "bfloat16":
        config = replace(config, architecture=replace(config.architecture, precision=way))
    shares.MANY = sys.maxsize if way == "cut by samples" else MANY  # a network is cut as it is made
    subject = Subject(config, source, runs, choose_device("cpu"))
    subject.begin(1)
    return subject


def measured(what: str, ways: list[str]) -> dict[str, Any]:
    """Return the minimum over the rounds."""
    name, method, runs = what.split(":")
    if name not in SOURCES:
        raise SystemExit(f"There are no made-up images of {name}. Use {' or '.join(SOURCES)}.")
    source = SOURCES[name]()
    subjects = {way: prepared(name, method, int(runs), source, way) for way in ways}
    found = dict.fromkeys(ways, float("inf"))
    for turn in range(TURNS + 1):
        for way, subject in subjects.items():
            pieces.CHUNK = sys.maxsize if way == "rows whole" else PIECE
            trainer = subject.trainer
            with on_device(trainer.device):
                trainer.engine.loader.step.zero_()
                began = time.perf_counter()
                for _ in range(STEPS):
                    trainer._step()
            if turn > 0:  # the first one warms up
                found[way] = min(found[way], (time.perf_counter() - began) / STEPS)
    return {"benchmark": name, "method": method, "runs": int(runs), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for what in args.what:
        rows.append(measured(what, args.ways))
        print(rows[-1], flush=True)
    if args.out is not None:
        origin = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
        args.out.write_text(json.dumps({"rows": rows, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
