"""Measure the gain of several jobs at the same time on one GPU, each in its own process.

    python benchmarks/side_by_side.py tiny-imagenet:ewc:3 tiny-imagenet:ewc:3 omniglot:ewc:3 --out side-by-side.json

Each argument is benchmark:method:runs, as for large_steps.py. The jobs first train alone, then all together;
`--sets 0,1 0,2 0,1,2` chooses other combinations. The gain is the sum of the jobs' speeds relative to their speeds
alone: 1 is as good as one after the other. With NVIDIA's MPS, `@low` after a job gives it a lower priority.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
from large_steps import SOURCES

from kenyon.bench.subject import Subject
from kenyon.benchmarks.registry import find_benchmark
from kenyon.experiments.config import configure
from kenyon.training import choose_device

PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"  # 1: below the others
EPOCHS = 100_000  # more than anybody trains in the time


class Worker:
    """A job in its own process, which trains while the shared flag is set."""

    def __init__(self, what: str, device: str) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.go: Synchronized[int] = spawning.Value("i", -1)  # -1: not ready yet; 0: wait; 1: train; 2: the end
        self.ended = spawning.Array("d", EPOCHS, lock=False)  # when each epoch did
        self.epochs: Synchronized[int] = spawning.Value("i", 0)
        self.fleet, _, low = what.partition("@")
        if low:
            os.environ[PRIORITY] = "1"
        self.process = spawning.Process(target=train, args=(self.fleet, device, self.go, self.ended, self.epochs))
        self.process.start()
        os.environ.pop(PRIORITY, None)

    def speed(self, since: float, until: float) -> float:
        """Epochs per second between the first and the last that ended in this time."""
        times = [t for t in self.ended[: self.epochs.value] if since <= t <= until]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def train(what: str, device_name: str, go: Any, ended: Any, epochs: Any) -> None:
    name, method, runs = what.split(":")
    device = choose_device(device_name)
    subject = Subject(configure(name, method), SOURCES[name](), int(runs), device)
    subject.begin(1)

    def epoch() -> None:
        subject.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    epoch()
    go.value = 0
    while go.value < 2 and epochs.value < EPOCHS:
        if go.value == 0:
            time.sleep(0.002)
            continue
        epoch()
        ended[epochs.value] = time.monotonic()
        epochs.value += 1


def speeds(workers: list[Worker], chosen: list[int], seconds: float) -> list[float]:
    """Epochs per second of the chosen jobs at the same time."""
    for number in chosen:
        workers[number].go.value = 1
    time.sleep(1)
    began = time.monotonic()
    time.sleep(seconds)
    found = [workers[number].speed(began, time.monotonic()) for number in chosen]
    for number in chosen:
        workers[number].go.value = 0
    time.sleep(0.5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What fleets gain side by side on one GPU.")
    parser.add_argument("what", nargs="+")
    parser.add_argument("--sets", nargs="*", help="which of them together, such as 0,2")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each set")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    for what in args.what:
        find_benchmark(what.split(":")[0])
    workers = [Worker(what, args.device) for what in args.what]
    while any(worker.go.value < 0 for worker in workers):
        if not all(worker.process.is_alive() for worker in workers):
            raise SystemExit("A fleet could not begin: see above.")
        time.sleep(0.1)
    alone: dict[str, float] = {}  # epochs a second
    for number, worker in enumerate(workers):
        if worker.fleet not in alone:
            alone[worker.fleet] = speeds(workers, [number], args.seconds)[0]
    everyone = ",".join(map(str, range(len(workers))))
    rows = []
    for text in args.sets or [everyone]:
        chosen = [int(number) for number in text.split(",")]
        found = speeds(workers, chosen, args.seconds)
        shares = [speed / alone[workers[number].fleet] for number, speed in zip(chosen, found, strict=True)]
        rows.append({"fleets": [args.what[number] for number in chosen], "shares": shares, "gain": sum(shares)})
        print(f"{text}: {sum(shares):.2f} ({', '.join(f'{share:.2f}' for share in shares)})", flush=True)
    for worker in workers:
        worker.go.value = 2
    for worker in workers:
        worker.process.join()
    if args.out is not None:
        device = choose_device(args.device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        origin = {"torch": torch.__version__, "python": platform.python_version(), "device": name}
        text = json.dumps({"epochs_a_second_alone": alone, "rows": rows, **origin}, indent=1)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
