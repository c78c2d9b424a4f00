"""What the examples of the estimator share: fine-tuning, EWC and CAF on the same tasks, and their scores in a table.

CAF's five learners are narrower, so that all methods have about as many parameters.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kenyon
from kenyon import ContinualLearner
from kenyon.data import find_source
from kenyon.metrics import Summary

METHODS = {"finetune": 1, "ewc": 1, "caf-ewc": 5}  # and how many learners
Job = tuple[str, int]  # method, seed
Task = tuple[str, tuple[Any, Any], tuple[Any, Any]]  # name, (X, y) to learn from, (X, y) to test on


def options(**defaults: Any) -> argparse.Namespace:
    """The options of every example. `--per-class`: samples to learn from (of CIFAR also to test on)."""
    parser = argparse.ArgumentParser()
    for name in ("tasks", "per-class", "epochs", "seeds", "width"):
        parser.add_argument(f"--{name}", type=int, default=defaults.get(name.replace("-", "_")))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--strengths", default=defaults.get("strengths", ""), help="lambda_sp: ewc=1e5,caf-ewc=1e6")
    parser.add_argument("--rates", default=defaults.get("rates", ""), help="of learning, likewise")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes train at the same time")
    parser.add_argument("--only", metavar="METHOD:SEED", help="one of them, printed as JSON")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    if "held_out" in defaults:  # of `from_source`
        said = "to choose settings: other tasks, and a fifth of their samples to learn from for testing"
        parser.add_argument("--held-out", type=int, metavar="SEED", default=defaults["held_out"], help=said)
    parser.add_argument("--data", type=Path, help="the folder of the dataset, where there is one")
    return parser.parse_args()


def by_class(X: Any, y: Any, args: argparse.Namespace, *, each: int = 2) -> list[Task]:
    """Tasks of so many classes, in the order of their labels; every second sample is for testing."""
    tasks: list[Task] = []
    classes = np.unique(y)
    for first in range(0, len(classes) - each + 1, each):
        mine = [np.flatnonzero(y == label) for label in classes[first : first + each]]
        learn = np.concatenate([places[::2][: args.per_class] for places in mine])
        test = np.concatenate([places[1::2] for places in mine])
        tasks.append((" or ".join(map(str, classes[first : first + each])), (X[learn], y[learn]), (X[test], y[test])))
    return tasks[: args.tasks]


def from_source(name: str, args: argparse.Namespace) -> list[Task]:
    """The tasks of one of Kenyon's own sources, whose files are in --data or where Kenyon looks for them."""
    source = find_source(name).load(args.data)
    assert isinstance(source.test, Tensor) and isinstance(source.groups, tuple) and isinstance(source.images, Tensor)
    tasks: list[Task] = []
    groups = list(source.groups)
    if args.held_out is not None:
        groups = [groups[n] for n in np.random.default_rng(args.held_out).permutation(len(groups))]
    for group in groups[: args.tasks]:
        mine = [torch.nonzero(source.labels == c).flatten() for c in group.classes]
        learn = torch.cat([places[~source.test[places]][: args.per_class] for places in mine])
        test = torch.cat([places[source.test[places]][: args.per_class] for places in mine])
        if args.held_out is not None:
            fifth = torch.arange(len(learn)) % 5 == 4
            learn, test = learn[~fifth], learn[fifth]
        tasks.append((group.name, *((source.images[part], source.labels[part]) for part in (learn, test))))
    return tasks


def compare(
    tasks: Sequence[Task],
    backbone: Callable[[int], nn.Module],
    args: argparse.Namespace,
    *,
    ordered: bool = False,
    **settings: Any,
) -> None:
    """Learn all tasks by every method and seed, and print average accuracies: mean and standard error over seeds.

    `backbone` builds a network of a width: `--width` is that of a single learner.
    Seeds decide first weights, batches and, unless `ordered`, the order of the tasks. Settings are the estimator's.
    """
    strengths, rates = _by_method(args.strengths), _by_method(args.rates)
    widths = {method: _narrow(backbone, args.width, learners) for method, learners in METHODS.items()}

    def learned(job: Job) -> dict[str, Any]:
        method, seed = job
        begun, width = time.perf_counter(), widths[method]
        order = range(len(tasks)) if ordered else np.random.default_rng(seed).permutation(len(tasks))
        own = dict(settings, epochs=args.epochs, seed=seed, device=args.device)
        own |= {"lambda_sp": strengths[method]} if method in strengths else {}
        own |= {"rate": rates[method]} if method in rates else {}
        learner = ContinualLearner(lambda: backbone(width), method, **own)
        for number in order:
            name, learn, test = tasks[number]
            learner.fit(*learn, task=name, test=test)
        named, inferred = (float(np.mean(learner.accuracy_matrix(reading)[-1])) for reading in ("named", "inferred"))
        learnt = float(np.mean(np.diag(learner.accuracy_matrix())))
        found = {"named": named, "inferred": inferred, "learned": learnt, "seconds": time.perf_counter() - begun}
        return found | {"parameters": learner.knowledge_.net.parameter_count}

    if args.only:
        method, seed = args.only.split(":")
        print(json.dumps(learned((method, int(seed)))))
        return
    rows: list[dict[str, Any]] = []
    jobs = [(method, seed) for method in METHODS for seed in range(args.seeds)]
    for (method, _), found in zip(jobs, _each(learned, jobs, args.jobs), strict=True):
        if not rows or rows[-1]["method"] != method:
            rows.append({"method": method, "learners": METHODS[method], "width": widths[method]})
        row = rows[-1]
        row["parameters"] = found.pop("parameters")
        for name, value in found.items():
            row.setdefault(name, []).append(value)
        if len(row["named"]) == args.seeds:
            _print(row, shared=settings.get("heads") == "shared")
    if args.json:
        shown = {name: value for name, value in vars(args).items() if not isinstance(value, Path)}
        origin = {"kenyon": kenyon.__version__, "torch": torch.__version__, "platform": platform.platform()}
        if torch.cuda.is_available():
            origin["gpu"] = torch.cuda.get_device_name()
        whole = {"options": shown, "settings": settings, "versions": origin, "rows": rows}
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


def _by_method(text: str) -> dict[str, float]:
    return {method: float(value) for method, value in (one.split("=") for one in text.split(",") if one)}


def _print(row: dict[str, Any], *, shared: bool) -> None:
    named, inferred = Summary.of(row["named"]), Summary.of(row["inferred"])
    line = f"{row['method']:9} {row['parameters']:>10,} parameters   {named.text(1):>12} %"
    line += "" if shared else f"   {inferred.text(1):>12} % with the task inferred"
    print(f"{line}   {sum(row['seconds']):.1f} s", flush=True)


def _each(work: Callable[[Job], dict[str, Any]], jobs: Sequence[Job], processes: int) -> Iterator[dict[str, Any]]:
    """Results in the order of the jobs. Several processes share a device: each is this script, told one job."""
    if processes == 1:
        yield from map(work, jobs)
        return

    def apart(job: Job) -> dict[str, Any]:
        command = [sys.executable, *sys.argv, "--only", f"{job[0]}:{job[1]}"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, Any] = json.loads(answer.splitlines()[-1])
        print(f"{job[0]}, seed {job[1]}: {found['named']:.1f} %, {found['seconds']:.0f} s", file=sys.stderr)
        return found

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(apart, jobs)


def _narrow(backbone: Callable[[int], nn.Module], width: int, learners: int) -> int:
    """The width at which so many learners have most nearly as many parameters as one of the given width."""

    def parameters(w: int) -> int:
        return sum(p.numel() for p in backbone(w).parameters())

    budget = parameters(width)
    wide = bisect_left(range(1, width), budget, key=lambda w: learners * parameters(w)) + 1  # the first not too small
    return min(range(max(1, wide - 1), wide + 1), key=lambda w: abs(learners * parameters(w) - budget))
