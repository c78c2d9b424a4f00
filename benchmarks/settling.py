"""Check that epochs which are left out could not have improved the weights: train all, and examine the last ones.

    python benchmarks/settling.py digits --method ewc,caf-ewc --seeds 40 --epochs 100 --out settling.json

A run settles when its rate falls and its loss is above its best by SAFETY times what it could still change
(`kenyon.training.regime`). For several values of SAFETY: of how many tasks and runs, how many would have settled,
after how many epochs on average, and of how many a later epoch had a lower loss than all before.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kenyon.data import find_source
from kenyon.experiments.config import Config, configure
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.training import build_trainer
from kenyon.training.regime import SAFETY, Plateau

SAFETIES = (1.0, 2.0, 3.0, SAFETY)


@dataclass
class Course:
    """The losses of a run in a task."""

    best: list[float] = field(default_factory=list)  # loss so far, epoch by epoch
    settled: dict[float, int] = field(default_factory=dict)  # a safety -> after how many epochs


def watched(config: Config, seeds: int, data: Path | None) -> list[Course]:
    """Record losses on a CPU; captured steps of a GPU cannot be observed."""
    cells = [RunSpec(GridPoint(config), seed) for seed in range(seeds)]
    trainer = build_trainer(cells, find_source(config.benchmark).load(data), torch.device("cpu"))
    schedule = trainer.schedule
    if not isinstance(schedule, Plateau) or not schedule.settles:
        raise SystemExit(f"{config.method} on {config.benchmark} needs all its epochs: nothing settles there.")
    per_swing = schedule.reach / SAFETY
    schedule.never_settle()
    courses: dict[tuple[int, int], Course] = {}
    swings = torch.zeros(len(trainer.theta))
    follow = schedule.follow

    def listening(theta: torch.Tensor, loss: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
        swings.copy_(torch.maximum(schedule.swing, (loss - schedule.before).abs()))
        tired = follow(theta, loss, rate)
        at = trainer.position
        for run, (now, best, fell, swing) in enumerate(
            zip(loss.tolist(), schedule.best_loss.tolist(), tired.tolist(), swings.tolist(), strict=True)
        ):
            course = courses.setdefault((at.phase, run), Course())
            course.best.append(best)
            for safety in SAFETIES:
                if fell and now - best > safety * per_swing * swing:
                    course.settled.setdefault(safety, len(course.best))
        return tired

    schedule.follow = listening  # type: ignore[method-assign]
    trainer.run()
    return list(courses.values())


def row(courses: list[Course], safety: float) -> dict[str, Any]:
    ends = {number: course.settled[safety] for number, course in enumerate(courses) if safety in course.settled}
    missed = sum(courses[number].best[-1] < courses[number].best[end - 1] for number, end in ends.items())
    mean = sum(ends.values()) / len(ends) if ends else None
    return {"safety": safety, "of": len(courses), "settled": len(ends), "after_epochs": mean, "better_later": missed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Whether epochs that are left out could have brought better weights."
    )
    parser.add_argument("benchmark")
    parser.add_argument("--method", default="ewc")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    overrides = {} if args.epochs is None else {"epochs": args.epochs}
    rows = []
    for method in args.method.split(","):
        config = configure(args.benchmark, method, tasks=args.tasks, overrides=overrides)
        courses = watched(config, args.seeds, args.data)
        rows += [{"benchmark": args.benchmark, "method": method, **row(courses, safety)} for safety in SAFETIES]
        print(*rows[-len(SAFETIES) :], sep="\n", flush=True)
    if args.out is not None:
        origin = {"torch": torch.__version__, "python": platform.python_version(), "device": "cpu"}
        args.out.write_text(json.dumps({"rows": rows, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
