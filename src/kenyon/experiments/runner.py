"""Run experiments: check a request, train what is missing, and gather the results.

Finished runs are kept, and interrupted ones resumed. Images and games take the same path; a job of either kind is
trained by `train_tasks` or `train_games`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from operator import index
from pathlib import Path
from typing import Any

import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import FIRST_SEED, Source, withheld
from kenyon.errors import ConfigError, listed_names, shown, unknown
from kenyon.experiments.config import Config, find_setup, is_suite, settings
from kenyon.experiments.grid import GridPoint, RunSpec, check_size, expand, listed, reference_for
from kenyon.experiments.progress import Progress, Silent, check_progress, logging_to
from kenyon.experiments.results import Result
from kenyon.experiments.scheduler import MOST, Incomplete, Scheduler
from kenyon.experiments.spec import SEEDS, SEEDS_OF_GAMES, Experiment, merge_spec, read_spec
from kenyon.experiments.store import (
    Job,
    PointFolder,
    check_states,
    check_writable,
    find_states,
    method_folder,
    remove_finished,
)
from kenyon.experiments.training import train_tasks
from kenyon.training.device import choose_device
from kenyon.utils.determinism import deterministic as deterministically
from kenyon.utils.files import as_path

REFERENCE = "random-init"  # the method that forward transfer is measured against


# ------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True)
class Plan:
    """The runs of a request on one benchmark or suite, checked before anything is trained."""

    points: tuple[GridPoint, ...]  # method after method, in the order of the request
    references: tuple[GridPoint, ...]  # of forward transfer
    seeds: tuple[int, ...]
    device: torch.device
    data: Path | None
    out: Path
    most: int  # runs that train together
    keep_every: bool = False  # keep the weights after every task too; does not affect the numbers
    deterministic: bool = False  # use deterministic algorithms only
    log: str | None = None

    @property
    def methods(self) -> list[list[GridPoint]]:
        """All points to train, a list for each method, the references first."""
        first = [point for point in self.references if point not in self.points]
        return [list(points) for _, points in groupby([*first, *self.points], key=lambda point: point.config.method)]

    @property
    def games(self) -> tuple[str, ...]:
        """The games of a plan on a suite, in the order of learning."""
        return self.points[0].config.games

    @property
    def runs(self) -> list[RunSpec]:
        """All runs, finished ones included."""
        return [RunSpec(point, seed) for points in self.methods for point in points for seed in self.seeds]

    def missing(self) -> list[RunSpec]:
        """Return the runs that are not finished."""
        return missing_runs(self.out, [point for points in self.methods for point in points], self.seeds)


def plan(
    benchmark: str,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    *,
    overrides: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Check everything that `kenyon.run` is asked for, before anything is trained.

    `options`: fields of `Experiment`, such as tasks, games, device, data, out, fwt and fleet.
    """
    request = Experiment.of(benchmarks=(benchmark,), methods=methods, seeds=seeds, settings=overrides, **options)
    (planned,) = plan_all(request).values()
    return planned


def check_request(request: Experiment) -> None:
    """Refuse unknown benchmarks, options that apply to none of them, and settings that none of the methods has."""
    suites = [name for name in request.benchmarks if is_suite(name)]
    images = [name for name in request.benchmarks if name not in suites]
    for name in images:
        find_benchmark(name)
    request.check_applies(images, suites)
    known = _settings_of(request, games=False) if images else set()
    known |= _settings_of(request, games=True) if suites else set()
    for name in request.settings:
        if name not in known and request.methods:
            raise unknown(f"setting of {' or '.join(request.methods)}", name, known)


def plan_all(request: Experiment) -> dict[str, Plan]:
    """Return the plan of each benchmark. A kind of benchmark gets those of the settings that its methods have."""
    check_request(request)
    plans = {}
    for name in request.benchmarks:
        known = _settings_of(request, games=is_suite(name))
        own = {key: value for key, value in request.settings.items() if key in known}
        plans[name] = plan_benchmark(replace(request, settings=own), name)
    return plans


def plan_benchmark(request: Experiment, benchmark: str) -> Plan:
    """Return the plan of one benchmark."""
    find_setup(benchmark)
    games, methods = is_suite(benchmark), request.methods
    given = listed(request.settings)
    if not methods:
        raise ConfigError("No method is named. Try --method caf-ewc, or `kenyon list methods`.")
    if len(set(methods)) != len(methods):
        raise ConfigError(f"A method is named twice in {','.join(methods)}.")
    if request.log is not None:
        from kenyon.integrations.loggers import check_log

        check_log(request.log)
    default = SEEDS_OF_GAMES if games else SEEDS
    seeds = check_seeds(default if request.seeds is None else request.seeds)
    check_size(methods, given, len(seeds), games=games)
    points = {
        method: expand(benchmark, method, given, tasks=request.tasks, games=request.games) for method in methods
    }
    references = [] if games else _references(request, benchmark, points, given)
    planned = Plan(
        tuple(point for some in points.values() for point in some),
        tuple(references),
        seeds,
        choose_device(request.device),
        None if request.data is None else as_path("data", request.data),
        as_path("out", request.out),
        request.fleet or MOST,
        request.keep == "every",
        request.deterministic,
        request.log,
    )
    for some in (*points.values(), *([references] if references else [])):
        check_folders(planned.out, some)
    return planned


def _references(
    request: Experiment, benchmark: str, points: Mapping[str, Sequence[GridPoint]], given: Mapping[str, Any]
) -> list[GridPoint]:
    """Return the points that forward transfer is measured against: one learner, learning each task alone."""
    if REFERENCE in points:
        return list(points[REFERENCE])
    sequential = any(some[0].config.build_method().schedule == "sequential" for some in points.values())
    if not (request.fwt and sequential):
        return []
    # A width given for several learners is not one for the reference, which then has the usual width.
    several = all(point.config.architecture.learners > 1 for some in points.values() for point in some)
    own = {name: value for name, value in given.items() if not (several and name == "width")}
    return expand(benchmark, REFERENCE, own, tasks=request.tasks)


def _settings_of(request: Experiment, *, games: bool) -> set[str]:
    return {setting for method in request.methods for setting in settings(method, games=games)}


def check_folders(out: Path, points: Sequence[GridPoint]) -> None:
    """Raise ResultsError unless the folders of a method's points are writable and of the same configurations."""
    check_writable(method_folder(out, points[0]))
    for point in points:
        PointFolder(out, point).check()
    check_states(out, points)


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    try:
        if type(seeds) is bytes:
            raise TypeError
        if not isinstance(seeds, Iterable):  # bounded before they are listed
            seeds = range(min(index(seeds), FIRST_SEED + 1))
        chosen = tuple(index(seed) for seed in seeds)
    except TypeError:
        raise ConfigError(
            f"Seeds are a whole number of them or a list of whole numbers, not {shown(seeds)}."
        ) from None
    if not chosen:
        raise ConfigError("There must be at least one seed.")
    if len(set(chosen)) != len(chosen):
        raise ConfigError(f"A seed is named twice in {','.join(map(str, chosen))}; each run needs its own.")
    if min(chosen) < 0:
        raise ConfigError(f"Seeds are 0 or larger, not {min(chosen)}.")
    if max(chosen) >= FIRST_SEED:
        raise ConfigError(
            f"Seeds from {FIRST_SEED:,} on are those that `kenyon search` chooses settings with; {max(chosen):,} is "
            "one of them. Use smaller ones."
        )
    return chosen


def check_data(benchmark: str, planned: Plan) -> None:
    """Raise DataError if a dataset is missing that unfinished runs need. Reads nothing."""
    if planned.games or not planned.missing():
        return
    from kenyon.datasets.archives import DATASETS, data_folders, find

    for name in find_benchmark(benchmark).source.needs:
        find(DATASETS[name], data_folders(planned.data))


# ------------------------------------------------------------------------------------------------- execution


def source_of(config: Config, data: Path | None) -> Callable[[], Source]:
    """Return a function that reads the images of a configuration once."""

    @cache
    def read() -> Source:
        spec = find_benchmark(config.benchmark).source
        everything = spec.load(data)
        return withheld(everything, config.search, whole=spec.whole) if config.search else everything

    return read


def execute(
    plan: Plan,
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    read: Callable[[], Source] | None = None,
) -> dict[str, Any]:
    """Carry out a plan and return `Result`s, on suites `GameResult`s, by label: `ewc`, or `ewc[lambda_sp=10]` for a
    point of a grid.

    `stop` is called after every epoch or update; when it returns True, the state is saved and Interrupted raised. The
    same call continues from there. `read` gives the source to several plans of one benchmark. Runs that do not fit
    into the device's memory are left out, and named by Incomplete after all others are finished.
    """
    scheduler, results = Scheduler(plan.most, plan.device), dict[str, Any]()
    source = read or source_of(plan.points[0].config, plan.data)  # called only if something has to be trained
    with deterministically(plan.deterministic), logging_to(plan.log, progress or Silent(), plan.out) as shown_to:
        train = partial(
            train_job,
            source=source,
            device=plan.device,
            out=plan.out,
            progress=shown_to,
            stop=stop,
            keep_every=plan.keep_every,
        )
        for points in plan.methods:
            missing = partial(missing_runs, plan.out, points, plan.seeds)
            begun = partial(find_states, plan.out, points)
            scheduler.train_missing(missing, begun, plan.out, train, shown_to.fleet_split)
            remove_finished(plan.out, points)
            results |= gather(plan, points)
    if scheduler.without:
        raise Incomplete(scheduler.why(), scheduler.without, plan.out, results)
    return results


def train_job(
    job: Job,
    *,
    source: Callable[[], Source],
    device: torch.device,
    out: Path,
    progress: Progress,
    stop: Callable[[], bool],
    keep_every: bool = False,
) -> None:
    """Train a job of images or games to the end, and save its results."""
    config = job.runs[0].config
    if config.games:
        from kenyon.experiments.games import train_games

        train_games(job, device=device, out=out, progress=progress, stop=stop)
    else:
        every = keep_every and config.method != REFERENCE
        train_tasks(job, source(), device=device, out=out, progress=progress, stop=stop, keep_every=every)


def missing_runs(out: Path, points: Sequence[GridPoint], seeds: Sequence[int]) -> list[RunSpec]:
    """Return the runs of some points that are not finished."""
    missing = []
    for point in points:
        finished = PointFolder(out, point).finished()
        missing += [RunSpec(point, seed) for seed in seeds if seed not in finished]
    return missing


def gather(plan: Plan, points: Sequence[GridPoint]) -> dict[str, Any]:
    """Return the results of these points of a plan, by label, without references that were not asked for.

    Results of images store the accuracies that their forward transfer is measured against.
    """
    alone: dict[str, dict[int, list[float]]] = {}  # by label of the reference and seed
    for point in plan.references:
        result = PointFolder(plan.out, point).result()
        runs = result.complete_runs if result else []
        alone[point.label] = {run.seed: [row[t] for t, row in enumerate(run.accuracy)] for run in runs}
    results = {}
    for point in points:
        if point not in plan.points:
            continue
        reference = reference_for(point, plan.references)
        with_reference = partial(_with_reference, alone=alone[reference.label] if reference else {})
        result = PointFolder(plan.out, point).change(with_reference)
        if result is not None:
            results[point.label] = result.restricted(plan.seeds)
    return results


def _with_reference(result: Any, alone: Mapping[int, list[float]]) -> Any:
    known = {run.seed: alone[run.seed] for run in result.runs if run.seed in alone}
    return (
        result
        if known.items() <= getattr(result, "alone", {}).items()
        else replace(result, alone=result.alone | known)
    )


def run(
    benchmark: str | None = None,
    methods: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    config: Path | str | None = None,
    tasks: int | None = None,
    games: str | Sequence[str] | None = None,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fwt: bool = True,
    fleet: int | None = None,
    keep: str = "last",
    deterministic: bool = False,
    log: str | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> dict[str, Result]:
    """Train methods on a benchmark and return their results by name.

    By default these are finetune, ewc and caf-ewc on digits with the seeds 0 to 4, or what the file `config` says:
    TOML with benchmark, method, seeds and settings, as `kenyon search` writes it. Arguments take precedence over it.
    On a suite of games the values are `GameResult`s, and `games` selects games and their order.

    Other keywords are settings, as with `--set`: epochs=20, lambda_sp=1e4. A list of values makes a grid:
    lambda_sp=[1e3, 1e4] gives results called ewc[lambda_sp=1000] and ewc[lambda_sp=10000]. Runs that the folder `out`
    already holds are not trained again. `fwt=False` leaves out the reference that forward transfer needs; `fleet`
    bounds the number of runs that train together. `keep="every"` also keeps the weights after every task.
    `deterministic`: use PyTorch's deterministic algorithms, so that the numbers of a GPU repeat bit for bit; slower.
    `log`: also write the numbers to "tensorboard" or "wandb" during training.
    """
    for name, meant in (("method", "methods"), ("seed", "seeds")):
        if name in overrides:
            raise ConfigError(f"kenyon.run takes {meant}=..., not {name}=....")
    given = {
        "benchmarks": None if benchmark is None else [benchmark],
        "methods": None if methods is None else listed_names("methods", methods),
        "games": None if games is None else listed_names("games", games),
        "seeds": seeds,
        "settings": overrides,
        "tasks": tasks,
        "device": device,
        "data": data,
        "out": out,
        "fwt": fwt,
        "fleet": fleet,
        "keep": keep,
        "deterministic": deterministic,
        "log": log,
    }
    request = merge_spec(None if config is None else read_spec(config), given)
    if progress is not None:
        check_progress(progress, games=any(map(is_suite, request.benchmarks)))
    if len(request.benchmarks) > 1:
        raise ConfigError(
            f"{config} names {len(request.benchmarks)} benchmarks, and a call trains on one. Name one in the file; "
            "`kenyon run --config` and `kenyon sweep` take several."
        )
    (planned,) = plan_all(request).values()
    return execute(planned, progress=progress)
