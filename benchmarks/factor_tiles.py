"""Time, by tile size, the pass that multiplies the factored gradients of large dense layers in the update.

    python benchmarks/factor_tiles.py --out factor-tiles.json

The two dense layers of AlexNet for Tiny-ImageNet, three runs with EWC, with random numbers. A tile is outputs x
inputs, with a number of samples at a time and a number of warps.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from kenyon.backends.layout import Factors
from kenyon.backends.triton import factors
from kenyon.backends.triton.updates import PullOperands
from kenyon.models import Net
from kenyon.models.backbones import alexnet
from kenyon.training import choose_device

TILES = ((32, 64, 64, 4), (16, 64, 64, 4), (32, 32, 64, 4), (16, 128, 64, 4), (16, 64, 64, 2), (32, 64, 64, 8))
BYTES = (
    26  # of a weight: itself, momentum, importance and anchor are read, the first two written, and two of bfloat16
)
BATCH = 64


def layers(net: Net, runs: int, device: torch.device) -> list[Factors]:
    found = []
    for name in ("dense1.weight", "dense2.weight"):
        segment = net.layout.segments[name]
        sizes = [(runs, 1, BATCH, segment.shape[1]), (runs, 1, BATCH, segment.shape[2]), (runs, *segment.shape)]
        found.append(Factors(segment.start, *(torch.randn(*size, device=device).bfloat16() for size in sizes)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The pass over factors, by tile.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = choose_device("cuda")
    net = Net(alexnet(64), (3, 64, 64), [20] * 10)

    def rows(width: int) -> Tensor:
        return torch.randn(args.runs, width, device=device)

    theta, velocity, anchor = rows(net.layout.size), rows(net.layout.size), rows(net.layout.protected)
    importance, ones = rows(net.layout.protected).square(), torch.ones(args.runs, device=device)
    parts, forces = layers(net, args.runs, device), PullOperands([(ones, importance, anchor)], [])
    weights = sum(part.weight.numel() for part in parts)
    found = []
    for tile in TILES:
        factors.TALL, factors.WIDE, factors.DEEP, factors.WARPS = tile
        times = []
        for _ in range(args.times + 1):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for part in parts:
                factors.sgd(part, theta, velocity, 1e-6 * ones, ones, 0.9, forces)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        ms = median(times[1:])  # the first one compiles
        found.append({"tile": tile, "ms": ms, "tb_a_second": weights * BYTES / ms / 1e9})
        print(found[-1], flush=True)
    if args.out is not None:
        origin = {"torch": torch.__version__, "python": platform.python_version()}
        what = {"runs": args.runs, "device": torch.cuda.get_device_name(device), **origin}
        args.out.write_text(json.dumps({"rows": found, **what}, indent=1) + "\n")


if __name__ == "__main__":
    main()
