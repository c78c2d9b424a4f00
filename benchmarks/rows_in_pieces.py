"""Seconds of a training step on a CPU with rows of weights moved piece by piece, against rows moved whole, in turns.

    python benchmarks/rows_in_pieces.py tiny-imagenet:ewc:1 tiny-imagenet:caf-ewc:1 --out rows-in-pieces-cpu.json

Each argument is benchmark:method:runs, as for large_steps.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
from large_steps import SOURCES

from kenyon import pieces
from kenyon.bench.subject import Subject
from kenyon.experiments.config import configure
from kenyon.train import choose_device
from kenyon.train.device import on_device

WAYS = {"pieces": pieces.PIECE, "whole": sys.maxsize}
TURNS, STEPS = 4, 4


def measured(what: str) -> dict[str, Any]:
    """The least of the turns."""
    name, method, runs = what.split(":")
    if name not in SOURCES:
        raise SystemExit(f"There are no made-up images of {name}. Use {' or '.join(SOURCES)}.")
    subject = Subject(configure(name, method), SOURCES[name](), int(runs), choose_device("cpu"))
    subject.begin(1)
    trainer, found = subject.trainer, dict.fromkeys(WAYS, float("inf"))
    with on_device(trainer.device):
        trainer.engine.loader.step.zero_()
        trainer._step()
        for _ in range(TURNS):
            for way, numbers in WAYS.items():
                pieces.PIECE = numbers
                began = time.perf_counter()
                for _ in range(STEPS):
                    trainer._step()
                found[way] = min(found[way], (time.perf_counter() - began) / STEPS)
    return {"benchmark": name, "method": method, "runs": int(runs), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps on a CPU with rows moved piece by piece, and whole.")
    parser.add_argument("what", nargs="+")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for what in args.what:
        rows.append(measured(what))
        print(rows[-1], flush=True)
    if args.out is not None:
        origin = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
        args.out.write_text(json.dumps({"rows": rows, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
