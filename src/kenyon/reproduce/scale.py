"""How much of the paper's work a reproduction does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kenyon.errors import unknown


@dataclass(frozen=True)
class Scale:
    """`stand_in` takes the place of every benchmark, `seen` where pictures of convolutions are asked for."""

    name: str
    about: str
    stand_in: str | None = None
    seen: str | None = None
    most_seeds: int | None = None
    most_trained: int | None = None  # runs of a variant that are trained for a figure; more are used where they are
    tasks: int | None = None  # of each run; None: all
    settings: Mapping[str, Any] = field(default_factory=dict)  # for every run
    folder: str = ""  # of its runs, below the results folder

    def benchmark(self, name: str, *, convolutions: bool = False) -> str:
        return (self.seen if convolutions else self.stand_in) or name

    def benchmarks(self, *names: str) -> tuple[str, ...]:
        """Each once, in order."""
        return tuple(dict.fromkeys(self.benchmark(name) for name in names))

    def seeds(self, published: int) -> int:
        """How many runs a figure shows, where there are so many."""
        return min(published, self.most_seeds or published)

    def trained(self, published: int) -> int:
        """How many it needs."""
        return min(self.seeds(published), self.most_trained or published)

    def at_most(self, seeds: int | None) -> Scale:
        """The same with no more runs of a variant needed than these."""
        return self if seeds is None else replace(self, most_trained=seeds)


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "smoke",
            "handwritten digits on a CPU, 8 epochs, 2 runs, under a minute: that it works, not that it holds",
            stand_in="digits",
            seen="digits-conv",
            most_seeds=2,
            settings={"epochs": 8},
            folder="smoke",
        ),
        Scale(
            "quick",
            "the paper's benchmarks, 5 tasks of 20 epochs, 2 runs: a first look, minutes on a GPU",
            most_seeds=2,
            tasks=5,
            settings={"epochs": 20},
            folder="quick",
        ),
        Scale("paper", "the full protocol: for a GPU"),
    )
}


def find_scale(name: str) -> Scale:
    if name not in SCALES:
        raise unknown("scale", name, SCALES)
    return SCALES[name]
