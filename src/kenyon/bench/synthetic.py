"""Made-up images in the shapes and sizes of a benchmark, so that nothing has to be downloaded to measure speed."""

from __future__ import annotations

import torch

from kenyon.experiments.benchmarks import Benchmark
from kenyon.streams import Source
from kenyon.streams.source import Group

SEED = 0


def synthetic(benchmark: Benchmark, train: int, test: int) -> Source:
    """`train` and `test` images of every class. Each class has a picture of its own under noise: it can be learned.

    R-CIFAR-100 itself has 500 and 100, the digits about 36 and 144.
    """
    counts, shape = benchmark.source.class_counts, benchmark.source.shape
    classes = sum(counts)
    labels = torch.arange(classes).repeat(train + test)
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randint(0, 128, (len(labels), *shape), dtype=torch.uint8, generator=generator)
    images += torch.randint(0, 128, (classes, *shape), dtype=torch.uint8, generator=generator).repeat(
        train + test, 1, 1, 1
    )
    starts = [sum(counts[:t]) for t in range(len(counts))]
    fixed = len(set(counts)) > 1  # runs of one fleet have tasks of the same sizes in the same order
    return Source(
        name=benchmark.name,
        images=images,
        labels=labels,
        test=torch.arange(len(labels)) >= classes * train,
        class_names=tuple(map(str, range(classes))),
        groups=tuple(
            Group(f"task {t + 1}", tuple(range(start, start + count)), fixed)
            for t, (start, count) in enumerate(zip(starts, counts, strict=True))
        ),
        mean=(0.5,) * shape[0],
        std=(0.2,) * shape[0],
    )
