"""The runs that a figure is made from: what is there is used, what is missing is trained or told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kenyon.errors import ResultsError
from kenyon.experiments.benchmarks import find_benchmark
from kenyon.experiments.command import command_of
from kenyon.experiments.config import configure
from kenyon.experiments.fleets import MOST
from kenyon.experiments.grid import Point
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE, Plan, check_folders, execute
from kenyon.experiments.store import PointFolder
from kenyon.reproduce.scale import Scale
from kenyon.rl.results import GameResult
from kenyon.rl.runner import GamesPlan, execute_games
from kenyon.streams import Source


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
    play: Callable[[GamesPlan], dict[str, GameResult]] = execute_games  # how games are learned and shown

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


def point_of(place: Place, benchmark: str, variant: Variant) -> Point:
    """A variant that changes nothing is the method itself, whoever trained it."""
    given = {**place.scale.settings, **variant.settings}
    config = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=given)
    usual = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=place.scale.settings)
    return Point(config, {} if config == usual else dict(variant.settings))


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
