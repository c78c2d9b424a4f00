"""Time training steps, importance passes and tests of benchmarks larger than CIFAR, and measure their memory.

    python benchmarks/large_steps.py tiny-imagenet:ewc:5 cub-200:caf-ewc:5 --out large-steps.json

Each argument is benchmark:method:runs. Images are random, in the sizes of the benchmark, and augmented as in
training. Runs are at their second task. --plain-crops cuts random windows of photographs without Kenyon's kernel;
--together computes wide learners of one run together, not as separate runs; --whole-maps makes kernels compute
padding columns, and Omniglot's second layer without products of four warps; --batch-by-batch measures importances of
large networks from one small batch at a time; --whole-gradients stores gradients of large dense layers for the
optimizer; --shallow leaves strided convolutions of images unchanged.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kenyon.backends.cuda import choices, tiled
from kenyon.backends.triton import stacked
from kenyon.backends.triton import strided as deepened
from kenyon.bench.subject import Subject, synthetic
from kenyon.benchmarks import cub
from kenyon.benchmarks.registry import find_benchmark
from kenyon.data.sources import Source
from kenyon.data.tasks import CentreCrop, Crop, Ragged, ResizedCrop
from kenyon.experiments.config import configure
from kenyon.methods.importance import GradientImportance
from kenyon.training import augmentation as bilinear
from kenyon.training import choose_device
from kenyon.training import gradients as factoring

SOME = 400  # photographs that are made; the others are these again
LONGER = 340  # pixels of a photograph's longer side


def photographs() -> Source:
    """Make 59 images of each species, 47 for training, all of the same size."""
    each, size = 59, cub.SHORTER * LONGER
    count = each * cub.CLASSES
    pixels = torch.randint(0, 256, (SOME * size, 3), dtype=torch.uint8)
    return replace(
        synthetic(find_benchmark("cub-200"), 1, 1),
        images=Ragged(
            pixels,
            torch.arange(count) % SOME * size,
            torch.full((count,), cub.SHORTER),
            torch.full((count,), LONGER),
        ),
        labels=torch.arange(cub.CLASSES).repeat_interleave(each),
        test=torch.arange(each).repeat(cub.CLASSES) >= 47,
        augmentation=ResizedCrop(cub.SIDE),
        testing=CentreCrop(cub.SIDE),
    )


def small_pictures() -> Source:
    return replace(synthetic(find_benchmark("tiny-imagenet"), 500, 50), augmentation=Crop(padding=4, flip=True))


def drawings() -> Source:
    """Make 320 training images of each character, as in the benchmark, and fewer test images."""
    return synthetic(find_benchmark("omniglot"), 320, 10)


SOURCES: dict[str, Callable[[], Source]] = {
    "cub-200": photographs,
    "tiny-imagenet": small_pictures,
    "omniglot": drawings,
}


def timed(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Return the minimum of several times in seconds, after one for warmup."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found[1:])


def measured(what: str, sources: dict[str, Source], device: torch.device) -> dict[str, Any]:
    name, method, runs = what.split(":")
    if name not in SOURCES:
        raise SystemExit(f"There are no made-up images of {name}. Use {' or '.join(SOURCES)}.")
    if name not in sources:
        sources[name] = SOURCES[name]()
    if device.type == "cuda":
        gc.collect()  # a trainer refers to itself through its captured work
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    subject = Subject(configure(name, method), sources[name], int(runs), device)
    subject.begin(1)
    row: dict[str, Any] = {"benchmark": name, "method": method, "runs": int(runs), "steps": subject.steps}
    row["step_ms"] = 1000 * timed(subject.train_epoch, device, 4) / subject.steps
    if isinstance(subject.trainer.method.importance, GradientImportance):
        row["importance_s"] = timed(subject.importance_pass, device, 1)
    row["evaluation_s"] = timed(subject.evaluation, device, 1)
    if device.type == "cuda":
        used, kept = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        row |= {"used_gb": used / 1e9, "kept_gb": kept / 1e9}  # the most at a time; taken from the card
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a step beyond CIFAR.")
    parser.add_argument("what", nargs="+")
    parser.add_argument("--plain-crops", action="store_true")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--whole-maps", action="store_true")
    parser.add_argument("--batch-by-batch", action="store_true")
    parser.add_argument("--whole-gradients", action="store_true")
    parser.add_argument("--shallow", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = choose_device(args.device)
    if args.plain_crops:
        bilinear.bilinear_available = lambda pixels: False
    if args.together:
        tiled.WIDE = sys.maxsize
    choices.NARROW = not args.whole_maps
    if args.batch_by_batch:
        stacked.GROUPED = 1
    if args.whole_gradients:
        factoring.LARGE = sys.maxsize
    if args.shallow:
        deepened.FEW = 0
    names = ("plain_crops", "together", "whole_maps", "batch_by_batch", "whole_gradients", "shallow")
    changed = {name: getattr(args, name) for name in names}
    sources: dict[str, Source] = {}
    rows = []
    for what in args.what:
        rows.append(measured(what, sources, device) | changed)
        print(rows[-1], flush=True)
    if args.out is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        origin = {"torch": torch.__version__, "python": platform.python_version(), "device": name}
        args.out.write_text(json.dumps({"rows": rows, **origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
