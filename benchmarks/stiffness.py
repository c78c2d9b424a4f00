"""Measure the stiffest penalty on a weight after each task, against the stability limit of the optimizer.

    python benchmarks/stiffness.py tiny-imagenet --method mcl-ewc --seeds 0 --tasks 3 --out stiffness.json

A row has, for a task and a seed, rate x strength x importance at that weight, the stability limit (2 (1 + m) for SGD
with momentum m, none for Adam), and the place of the weight. Runs that diverge end there. `--epochs` shortens
training.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.training import build_trainer
from kenyon.training import Interrupted, Trainer, choose_device


def row(trainer: Trainer, run: int, strength: float) -> dict[str, Any]:
    hardest, place = trainer.importance[run].max(0)
    name = next(n for n, s in trainer.net.layout.segments.items() if s.start <= int(place) < s.stop)
    return {
        "task": trainer.position.phase,  # behind it
        "seed": trainer.seeds[run],
        "stiffness": trainer.training.rate * strength * float(hardest),
        "limit": trainer.optimizer.follows if trainer.optimizer.follows < inf else None,
        "at": name,
        "diverged": trainer.position.diverged[run],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How hard protection holds the hardest weight after each task.")
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="mcl-ewc", help="of EWC or MAS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = choose_device(args.device)
    config = configure(args.benchmark, args.method)
    if args.epochs is not None:  # the rate falls where it would, in proportion
        usual = config.training
        drop = max(1, round(usual.drop_epoch * args.epochs / usual.epochs))
        config = configure(args.benchmark, args.method, overrides={"epochs": args.epochs, "drop_epoch": drop})
    strength = float(config.hyper["lambda_sp"])
    source = find_benchmark(config.benchmark).source.load(args.data)
    trainer = build_trainer([RunSpec(GridPoint(config), seed) for seed in args.seeds], source, device)
    rows: list[dict[str, Any]] = []
    fallen: set[int] = set()
    began, whole = time.monotonic(), args.tasks * config.training.epochs

    def watch(now: Trainer) -> bool:
        at = now.position
        for run, place in enumerate(at.diverged):
            if place is not None and run not in fallen:
                fallen.add(run)
                where = f"seed {args.seeds[run]} diverged in task {place[0] + 1}, epoch {place[1] + 1}."
                print(where, now.why_diverged(run), flush=True)
        if at.epoch == 0:
            for run in range(len(args.seeds)):
                rows.append(row(now, run, strength))
                print(rows[-1], flush=True)
        done = at.phase * config.training.epochs + at.epoch
        left = (time.monotonic() - began) / done * (whole - done) / 60
        print(f"{done} of {whole} epochs, about {left:.1f} min left", file=sys.stderr, flush=True)
        return at.phase >= args.tasks

    with suppress(Interrupted):
        trainer.run(watch)
    if args.out is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        origin = {"epochs": config.training.epochs, "torch": torch.__version__, "python": platform.python_version()}
        args.out.write_text(json.dumps({"rows": rows, **origin, "device": name}, indent=1) + "\n")


if __name__ == "__main__":
    main()
