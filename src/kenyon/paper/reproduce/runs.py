"""The runs of a figure: existing ones are used, missing ones trained, and analyses measured once and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kenyon.benchmarks.registry import find_benchmark
from kenyon.errors import ResultsError
from kenyon.experiments.config import configure
from kenyon.experiments.grid import GridPoint
from kenyon.experiments.progress import Progress
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE, Plan, check_folders, execute
from kenyon.experiments.scheduler import MOST, command_of
from kenyon.experiments.store import PointFolder
from kenyon.paper.reproduce.figure import Place, Results, Variant, VariantResult, Wanted
from kenyon.utils.views import View

Runs = list[dict[str, Any]]  # measurements of every run, with its seed


def point_of(place: Place, benchmark: str, variant: Variant) -> GridPoint:
    """Return the grid point of a variant. One that changes nothing is the method itself, in its usual folder."""
    given = {**place.scale.settings, **variant.settings}
    config = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=given)
    usual = configure(benchmark, variant.method, tasks=_tasks(place, benchmark), overrides=place.scale.settings)
    return GridPoint(config, {} if config == usual else dict(variant.settings))


def _tasks(place: Place, benchmark: str) -> int | None:
    limit = place.scale.tasks
    return None if limit is None else min(limit, len(find_benchmark(benchmark).source.class_counts))


def gather(
    place: Place, wanted: Sequence[Wanted], progress: Progress | None = None, stop: Callable[[], bool] = lambda: False
) -> Results:
    """Train the runs that are missing, and return the results of all variants."""
    plans = [(one, _plan(place, one)) for one in wanted]
    if not place.train:
        _check_present(place, plans)
    results: Results = {}
    for one, plan in plans:
        execute(plan, progress=progress, stop=stop)
        shown = range(place.scale.seeds(one.seeds))
        for variant, point in zip(one.variants, plan.points, strict=True):
            folder = PointFolder(plan.out, point)
            whole = folder.result()
            assert whole is not None  # `execute` has just saved it
            of_variant = VariantResult(variant, whole.restricted(shown), folder.path)
            results.setdefault(one.benchmark, {})[variant.name] = of_variant
    return results


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
            "Runs that this figure needs are missing. These commands make them, and so does the same one without "
            "--no-train:\n  " + "\n  ".join(dict.fromkeys(commands))
        )


def measured(results: Results, place: Place, name: str) -> dict[str, dict[str, Runs]]:
    """Analyse all runs; benchmark -> name of a variant -> measurements of its runs."""
    from kenyon.paper.analyses import analyse, find_analysis

    analysis = find_analysis(name)

    def of(benchmark: str, one: VariantResult) -> Runs:
        source = cache(lambda: place.source(benchmark))
        whole = Result.load(one.folder / "result.json")  # all runs: a saved analysis has all of them
        runs = analyse(analysis, analysis.settings, one.folder, whole, source, place.device).runs
        asked = {run.seed for run in one.result.runs}
        return [run for run in runs if run["seed"] in asked]

    return {b: {name: of(b, one) for name, one in variants.items()} for b, variants in results.items()}


def compared(results: Results, place: Place, name: str) -> list[View]:
    """Return the comparing view of an analysis for every benchmark."""
    from kenyon.paper.analyses import find_analysis

    compare = find_analysis(name).compare
    assert compare is not None
    return [compare(benchmark, runs) for benchmark, runs in measured(results, place, name).items()]


def values_by_seed(runs: Runs, value: str) -> dict[int, float]:
    return {int(run["seed"]): float(run[value]) for run in runs if run.get(value) is not None}
