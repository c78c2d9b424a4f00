"""Compare ways to enlarge Omniglot's images by the accuracy that methods reach: variants as runs of one ensemble.

    python benchmarks/omniglot_variants.py --data FOLDER --method ewc 30:3:leaky:5e6 15:2:leaky:5e6:ink

A variant is degrees:pixels:split:lambda_sp, optionally with a look. The split is leaky (versions of a drawing fall on
all sides, as published) or clean (by people). The look is paper (black ink on white, as in the benchmark), sheet (the
same, but black beyond the edges of the turned and shifted drawing) or ink (white ink on black). One seed; first
alphabets only. Prints and writes the average accuracy in the end, and of tasks right after they were learned.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kenyon.benchmarks import omniglot as made
from kenyon.benchmarks.omniglot import FINE, enlarge, poses
from kenyon.data.sources import Source
from kenyon.data.tasks import Partition, RandomTest, RandomTestByOrigin
from kenyon.datasets.archives import OMNIGLOT, data_folders, find
from kenyon.datasets.images import pictures
from kenyon.experiments.config import configure
from kenyon.experiments.training import build_net
from kenyon.methods import METHODS
from kenyon.training import Trainer, choose_device

SOME = 256  # drawings enlarged at a time


@dataclass(frozen=True)
class Variant:
    degrees: float
    pixels: float
    split: str
    lambda_sp: float
    look: str = "paper"

    @classmethod
    def of(cls, text: str) -> Variant:
        degrees, pixels, split, strength, *look = text.split(":")
        if split not in ("leaky", "clean"):
            raise SystemExit(f"The split of {text} must be leaky or clean.")
        if look not in ([], ["ink"], ["paper"], ["sheet"]):
            raise SystemExit(f"The look of {text} must be paper, sheet or ink.")
        return cls(float(degrees), float(pixels), split, float(strength), *look)

    @property
    def images(self) -> tuple[float, float, str, str]:
        """The settings that determine the images and their split."""
        return self.degrees, self.pixels, self.split, self.look

    def enlarged(self, drawings: torch.Tensor, lying: torch.Tensor) -> torch.Tensor:
        if self.look == "paper":
            return made.on_paper(drawings, lying)
        return enlarge(drawings if self.look == "sheet" else 255 - drawings, lying)


def drawings_of(data: Path, tasks: int) -> tuple[torch.Tensor, list[tuple[str, list[str]]]]:
    alphabets, files = made.listed(find(OMNIGLOT, data_folders(data)))
    alphabets = alphabets[:tasks]
    files = files[: sum(len(names) for _, names in alphabets) * made.DRAWERS]
    drawings = torch.empty(len(files), FINE, FINE, dtype=torch.uint8)
    for position, picture in pictures(files, made.decoded, "reading omniglot"):
        drawings[position] = torch.from_numpy(picture)
    return drawings, alphabets


def source_of(
    variant: Variant, drawings: torch.Tensor, alphabets: list[tuple[str, list[str]]], device: torch.device
) -> Source:
    versions, classes = made.VERSIONS, len(drawings) // made.DRAWERS
    lying = poses(len(drawings), versions, variant.degrees, variant.pixels)
    parts = [
        variant.enlarged(drawings[i : i + SOME].to(device), lying[i : i + SOME].to(device)).cpu()
        for i in range(0, len(drawings), SOME)
    ]
    drawer = torch.arange(made.DRAWERS).repeat_interleave(versions).repeat(classes)
    partition: Partition = RandomTest() if variant.split == "leaky" else RandomTestByOrigin(drawer)
    return Source(
        name="omniglot",
        images=torch.cat(parts).view(-1, *made.SHAPE),
        labels=torch.arange(classes).repeat_interleave(made.DRAWERS * versions),
        test=partition,
        class_names=tuple(f"{alphabet} {name}" for alphabet, names in alphabets for name in names),
        groups=tuple(made.groups(alphabets)),
        mean=made.MEAN,
        std=made.STD,
    )


def told(trainer: Trainer) -> bool:
    """Report progress after every epoch: the average accuracy of the tasks seen, by variant."""
    seen = len(trainer.position.records)
    averages = np.array(trainer.position.records[-1]["accuracy"])[:, :seen].mean(1) if seen else []
    print(f"\r{seen} tasks: {' '.join(f'{average:.1f}' for average in averages)}", end="", flush=True)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Variants of Omniglot's enlarged images.")
    parser.add_argument("variants", nargs="+", type=Variant.of)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--method", default="ewc")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device, begun = choose_device(args.device), time.perf_counter()
    drawings, alphabets = drawings_of(args.data, args.tasks)
    kinds = {v.images: v for v in args.variants}
    sources = {kind: source_of(v, drawings, alphabets, device) for kind, v in kinds.items()}
    streams = [sources[v.images].stream(0, validation=0.1) for v in args.variants]
    config = configure("omniglot", args.method, tasks=len(alphabets), overrides={"epochs": args.epochs})
    strengths = torch.tensor([v.lambda_sp for v in args.variants], device=device)
    method = METHODS[args.method]({**config.hyper, "lambda_sp": strengths})
    trainer = Trainer(build_net(config, method, streams[0], device), streams, method, config.training)
    trainer.run(told)
    matrices = np.array([record["accuracy"] for record in trainer.position.records])  # (T, R, T)
    rows = []
    for run, variant in enumerate(args.variants):
        mine = matrices[:, run]
        learned = np.diag(mine)
        row = vars(variant) | {"aac": float(mine[-1].mean()), "learned": float(learned.mean())}
        rows.append(row)
        print(f"\n{args.method} {variant}: {row['aac']:.2f} %, just learned {row['learned']:.2f} %", end="")
    print()
    if args.out is not None:
        options = {name: getattr(args, name) for name in ("method", "tasks", "epochs")}
        origin = {"torch": torch.__version__, "python": platform.python_version(), "device": str(device)}
        body = {"options": options, "rows": rows, "versions": origin, "seconds": time.perf_counter() - begun}
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
