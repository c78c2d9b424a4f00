"""How much of the paper's work a reproduction does.

The runs that a figure is made from: what is there is used, what is missing is trained or told.

Analyses of the runs of a figure: measured once, and kept beside the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Source
from kenyon.errors import ResultsError, unknown
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE, Plan, check_folders, execute
from kenyon.experiments.scheduler import MOST, command_of
from kenyon.experiments.store import PointFolder
from kenyon.paper.analyses import analyse, find_analysis
from kenyon.utils.views import View


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


@dataclass(frozen=True)
class Variant:
    """A method with some settings, and what a figure calls it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    called: str = ""

    @property
    def name(self) -> str:
        return self.called or self.method


@dataclass(frozen=True)
class Wanted:
    benchmark: str
    variants: tuple[Variant, ...]
    seeds: int = 5
    fwt: bool = False  # whether forward transfer is looked at
    every_task: bool = False  # whether weights after every task are


@dataclass(frozen=True)
class Place:
    """Where runs are looked for and trained."""

    out: Path
    scale: Scale
    device: torch.device
    data: Path | None = None
    train: bool = True  # False: missing runs are an error
    play: Callable[[Plan], dict[str, Any]] = execute  # how games are learned and shown

    @property
    def runs(self) -> Path:
        return self.out / self.scale.folder

    def source(self, benchmark: str) -> Source:
        return find_benchmark(benchmark).source.load(self.data)


@dataclass(frozen=True)
class Had:
    """Results of a variant, and where they lie."""

    variant: Variant
    result: Result
    folder: Path


Found = dict[str, dict[str, Had]]  # benchmark -> what the figure calls it -> results


def point_of(place: Place, benchmark: str, variant: Variant) -> GridPoint:
    """A variant that changes nothing is the method itself, whoever trained it."""
    given = {**place.scale.settings, **variant.settings}
    config = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=given)
    usual = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=place.scale.settings)
    return GridPoint(config, {} if config == usual else dict(variant.settings))


def _tasks(place: Place, benchmark: str) -> int | None:
    limit = place.scale.tasks
    return None if limit is None else min(limit, len(find_benchmark(benchmark).source.class_counts))


def gather(
    place: Place, wanted: Sequence[Wanted], progress: Progress | None = None, stop: Callable[[], bool] = lambda: False
) -> Found:
    plans = [(one, _plan(place, one)) for one in wanted]
    if not place.train:
        _check_present(place, plans)
    found: Found = {}
    for one, plan in plans:
        execute(plan, progress=progress, stop=stop)
        shown = range(place.scale.seeds(one.seeds))
        for variant, point in zip(one.variants, plan.points, strict=True):
            folder = PointFolder(plan.out, point)
            whole = folder.result()
            assert whole is not None  # it has just been carried out
            had = Had(variant, whole.restricted(shown), folder.path)
            found.setdefault(one.benchmark, {})[variant.name] = had
    return found


def _plan(place: Place, one: Wanted) -> Plan:
    points = tuple(point_of(place, one.benchmark, variant) for variant in one.variants)
    references = (point_of(place, one.benchmark, Variant(REFERENCE)),) if one.fwt else ()
    check_folders(place.runs, [*points, *references])
    seeds = tuple(range(place.scale.trained(one.seeds)))
    return Plan(points, references, seeds, place.device, place.data, place.runs, MOST, one.every_task)


def _check_present(place: Place, plans: Sequence[tuple[Wanted, Plan]]) -> None:
    commands = []
    for one, plan in plans:
        for point in (*plan.points, *plan.references):
            result = PointFolder(plan.out, point).result()
            there = {run.seed for run in result.runs} if result else set()
            missing = [seed for seed in plan.seeds if seed not in there]
            if missing:
                keep = ("--keep-every-task",) if one.every_task else ()
                commands.append(command_of(point.config, missing, plan.out, *keep, varied=point.varied))
    if commands:
        raise ResultsError(
            "Runs that this is made from are missing. These commands make them, and so does the same one without "
            "--no-train:\n  " + "\n  ".join(dict.fromkeys(commands))
        )


Runs = list[dict[str, Any]]  # what was measured of every run, with its seed


def measured(found: Found, place: Place, name: str) -> dict[str, dict[str, Runs]]:
    """Benchmark -> what the figure calls a variant -> runs."""
    analysis = find_analysis(name)

    def of(benchmark: str, had: Had) -> Runs:
        source = cache(lambda: place.source(benchmark))
        whole = Result.load(had.folder / "result.json")  # with all its runs: what is kept beside it is of all
        runs = analyse(analysis, analysis.settings, had.folder, whole, source, place.device).runs
        asked = {run.seed for run in had.result.runs}
        return [run for run in runs if run["seed"] in asked]

    return {b: {name: of(b, had) for name, had in hads.items()} for b, hads in found.items()}


def compared(found: Found, place: Place, name: str) -> list[View]:
    """One view a benchmark, its variants side by side."""
    compare = find_analysis(name).compare
    assert compare is not None
    return [compare(benchmark, runs) for benchmark, runs in measured(found, place, name).items()]


def by_seed(runs: Runs, value: str) -> dict[int, float]:
    return {int(run["seed"]): float(run[value]) for run in runs if run.get(value) is not None}
