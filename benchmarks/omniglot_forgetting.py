"""Measure how one learner with EWC forgets the first alphabets while it learns the next, epoch by epoch.

    python benchmarks/omniglot_forgetting.py --data FOLDER --seed 3 --tasks 2 --every 3 --out omniglot-forgetting.json

A row has the accuracy of every alphabet so far, the value of the penalty, the distance of the protected weights from
the anchor, and the loss of the last batch. The importance is that of earlier alphabets: its sum, and the share of
half a per cent of the weights.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kenyon.data import find_source
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.training import build_trainer
from kenyon.training import Trainer, choose_device
from kenyon.training.evaluation import evaluate

METHOD = "ewc"


def share(importance: Tensor) -> float:
    return float(importance.topk(len(importance) // 200).values.sum() / importance.sum())


def row(trainer: Trainer, strength: float) -> dict[str, Any]:
    at = trainer.position
    learned = range(at.phase + 1)
    tested = evaluate(trainer.net, trainer.theta, trainer.fleet, trainer.engine.lanes, [0], tasks=learned)
    moved = trainer.theta[:, : trainer.anchor.shape[1]] - trainer.anchor
    return {
        "task": at.phase + 1,
        "epoch": at.epoch,
        "accuracy": [round(value, 1) for value in tested.accuracy[0].tolist()],
        "penalty": strength / 2 * float((trainer.importance * moved.square()).sum()) if at.phase else 0.0,
        "moved": float(moved.norm()) if at.phase else 0.0,
        "importance": [float(trainer.importance.sum()), share(trainer.importance[0])] if at.phase else None,
        "loss": float(trainer.engine.loss),
        "rate": float(trainer.rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What one learner loses of the first alphabets.")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--every", type=int, default=3, help="epochs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = choose_device(args.device)
    config = configure("omniglot", METHOD, tasks=args.tasks, overrides={"epochs": args.epochs})
    strength = float(config.hyper["lambda_sp"])
    trainer = build_trainer([RunSpec(GridPoint(config), args.seed)], find_source("omniglot").load(args.data), device)
    rows: list[dict[str, Any]] = []

    def watch(now: Trainer) -> bool:
        if now.position.epoch and now.position.epoch % args.every == 0:
            rows.append(row(now, strength))
            print(rows[-1], flush=True)
        return False

    trainer.run(watch)
    if args.out is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        origin = {"torch": torch.__version__, "python": platform.python_version(), "device": name}
        args.out.write_text(json.dumps({"seed": args.seed, "rows": rows, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
