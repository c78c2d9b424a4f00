"""Run experiments: train what is missing, keep what is there, continue what was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from operator import index
from pathlib import Path
from typing import Any, TypeVar

import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import FIRST_SEED, Source, withheld
from kenyon.datasets.archives import DATASETS, data_folders, find
from kenyon.errors import ConfigError, listed_names, shown, unknown
from kenyon.experiments.grid import AnyPoint, C, CellOf, Point, PointOf, check_size, expand, listed, reference_for
from kenyon.experiments.incomplete import Incomplete
from kenyon.experiments.progress import Progress, Silent, check_progress, logging_to
from kenyon.experiments.results import Kept, Result
from kenyon.experiments.scheduler import MOST, Room
from kenyon.experiments.spec import Config, settings
from kenyon.experiments.spec_file import asked, read_config
from kenyon.experiments.store import PointFolder, check_writable, method_folder
from kenyon.experiments.training import Crew, CrewOf, train_crew
from kenyon.experiments.unfinished import check_states, find_states, remove_finished
from kenyon.integrations.loggers import check_log
from kenyon.training import choose_device
from kenyon.utils.determinism import deterministic as deterministically
from kenyon.utils.files import as_path

REFERENCE = "random-init"  # what forward transfer is measured against
KEPT = ("last", "every")  # weights: those of the end, or also those after every task

K = TypeVar("K", bound=Kept[Any, Any])


@dataclass(frozen=True)
class Plan:
    """What a call asks for, checked before anything is trained."""

    points: tuple[Point, ...]  # method after method, in the order asked for
    references: tuple[Point, ...]  # what their forward transfer is measured against
    seeds: tuple[int, ...]
    device: torch.device
    data: Path | None
    out: Path
    most: int  # runs that train together
    keep_every: bool = False  # also keep the weights after every task; says nothing of the numbers
    deterministic: bool = False  # only algorithms that repeat
    log: str | None = None  # where the numbers go while runs train, besides their results

    @property
    def methods(self) -> list[list[Point]]:
        """All points to train, a list a method, the references first."""
        first = [point for point in self.references if point not in self.points]
        return [list(points) for _, points in groupby([*first, *self.points], key=lambda point: point.config.method)]


def plan(
    benchmark: str,
    methods: Sequence[str],
    seeds: int | Sequence[int],
    *,
    tasks: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fwt: bool = True,
    fleet: int | None = None,
    keep: str = "last",
    deterministic: bool = False,
    log: str | None = None,
) -> Plan:
    """Check everything that `kenyon.run` is asked for, before anything is trained."""
    find_benchmark(benchmark)
    given = check_asked(methods, overrides or {})
    if keep not in KEPT:
        raise ConfigError(f"keep says which weights to keep, {' or '.join(KEPT)}, not '{keep}'.")
    if log is not None:
        check_log(log)
    chosen = check_seeds(seeds)
    check_size(methods, given, len(chosen))

    points = {method: expand(benchmark, method, given, tasks=tasks) for method in methods}
    sequential = any(some[0].config.build_method().schedule == "sequential" for some in points.values())
    references = points.get(REFERENCE, [])
    if fwt and sequential and not references:
        references = expand(benchmark, REFERENCE, _of_reference(points, given), tasks=tasks)
    checked = Plan(
        tuple(point for some in points.values() for point in some),
        tuple(references),
        chosen,
        choose_device(device),
        None if data is None else as_path("data", data),
        as_path("out", out),
        check_fleet(fleet),
        keep == "every",
        deterministic,
        log,
    )
    for some in (*points.values(), *([references] if references else [])):
        check_folders(checked.out, some)
    return checked


def _of_reference(points: Mapping[str, Sequence[Point]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of what forward transfer is measured against: one learner. A width that was given for each of
    several is none of it; then it has the usual one, however the width of the others is written.
    """
    several = all(point.config.architecture.learners > 1 for some in points.values() for point in some)
    return {name: value for name, value in given.items() if not (several and name == "width")}


def check_asked(
    methods: Sequence[str],
    overrides: Mapping[str, Any],
    settings_of: Callable[[str], Sequence[str]] = settings,
) -> dict[str, Any]:
    """That methods are named, each once, and every setting is one of theirs; the settings with lists as lists."""
    given = listed(overrides)
    if not methods:
        raise ConfigError("No method is named. Try --method caf-ewc, or `kenyon list methods`.")
    if len(set(methods)) != len(methods):
        raise ConfigError(f"A method is named twice in {','.join(methods)}.")
    known = {setting for method in methods for setting in settings_of(method)}
    for setting in given:
        if setting not in known:
            raise unknown(f"setting of {' or '.join(methods)}", setting, known)
    return given


def check_folders(out: Path, points: Sequence[AnyPoint]) -> None:
    """That what is there of a method's points was made with the same configurations, and more can be written."""
    check_writable(method_folder(out, points[0]))
    for point in points:
        PointFolder(out, point).check()
    check_states(out, points)


def check_fleet(fleet: int | None) -> int:
    try:
        runs = MOST if fleet is None else index(fleet)
    except TypeError:
        runs = 0
    if runs < 1:
        raise ConfigError(f"--fleet takes a whole number of runs, at least 1, not {shown(fleet)}.")
    return runs


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    try:
        if isinstance(seeds, bytes):
            raise TypeError
        if not isinstance(seeds, Iterable):  # not all listed before their number is known to make sense
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
            "one of them. Take smaller ones."
        )
    return chosen


def source_of(config: Config, data: Path | None) -> Callable[[], Source]:
    """Reads the images that a configuration's runs are cut from, when it is first asked."""

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
) -> dict[str, Result]:
    """Carry out a plan and return the results by label: `ewc`, or `ewc[lambda_sp=10]` for a point of a grid.

    `stop` is asked after every epoch; when it says so, the state is saved and Interrupted raised. Doing the same
    again continues there. `read` gives the source to several plans of one benchmark. Runs that the device has no room
    for are left out, and named by Incomplete when all others are finished.
    """
    with deterministically(plan.deterministic), logging_to(plan.log, progress or Silent(), plan.out) as told:
        return _execute(plan, told, stop, read)


def _execute(
    plan: Plan, told: Progress, stop: Callable[[], bool], read: Callable[[], Source] | None
) -> dict[str, Result]:
    room = Room(plan.most, plan.device)
    source = read or source_of(plan.points[0].config, plan.data)  # read only if something has to be trained

    def train(crew: Crew) -> None:
        every = plan.keep_every and crew.cells[0].config.method != REFERENCE
        train_crew(crew, source(), device=plan.device, out=plan.out, progress=told, stop=stop, keep_every=every)

    def gathered(points: Sequence[Point]) -> dict[str, Result]:
        return gather(plan, points)

    return train_points(plan.methods, plan.seeds, plan.out, room, train, gathered, told)


def train_points(
    methods: Sequence[Sequence[PointOf[C]]],
    seeds: Sequence[int],
    out: Path,
    room: Room,
    train: Callable[[CrewOf[C]], None],
    gathered: Callable[[Sequence[PointOf[C]]], dict[str, K]],
    told: Progress,
) -> dict[str, K]:
    """Train what is missing, method after method, whatever is learned, and return what is there, by label. Runs that
    the device has no room for are named by Incomplete in the end.
    """
    results: dict[str, K] = {}
    for points in methods:
        missing, begun = partial(missing_of, out, points, seeds), partial(find_states, out, points)
        room.train_missing(missing, begun, out, train, told.fleet_split)
        remove_finished(out, points)
        results |= gathered(points)
    if room.without:
        raise Incomplete(room.why(), room.without, out, results)
    return results


def gather(plan: Plan, points: Sequence[Point]) -> dict[str, Result]:
    """The results that are there of these points of a plan, by label. They are given, and keep, what their forward
    transfer is measured against; references that were not asked for are left out.
    """
    alone: dict[str, dict[int, list[float]]] = {}  # by the reference's label and the seed
    for point in plan.references:
        result = PointFolder(plan.out, point).result()
        runs = result.complete_runs if result else []
        alone[point.label] = {run.seed: [row[t] for t, row in enumerate(run.accuracy)] for run in runs}
    results = {}
    for point in points:
        if point not in plan.points:
            continue
        reference = reference_for(point, plan.references)
        beside = alone[reference.label] if reference else {}

        def measured_against(result: Result, beside: dict[int, list[float]] = beside) -> Result:
            known = result.alone | {run.seed: beside[run.seed] for run in result.runs if run.seed in beside}
            return result if known == result.alone else replace(result, alone=known)

        result = PointFolder(plan.out, point).change(measured_against)
        if result is not None:
            results[point.label] = result.restricted(plan.seeds)
    return results


def missing_of(out: Path, points: Sequence[PointOf[C]], seeds: Sequence[int]) -> list[CellOf[C]]:
    """The runs of some points that are not finished."""
    missing = []
    for point in points:
        result = PointFolder[Kept[Any, Any]](out, point).result()
        finished = {run.seed for run in result.runs} if result else set()
        missing += [CellOf(point, seed) for seed in seeds if seed not in finished]
    return missing


def check_data(benchmark: str, planned: Plan) -> None:
    """That the datasets are there which missing runs need: nothing is read for it."""
    if missing_of(planned.out, [*planned.points, *planned.references], planned.seeds):
        for name in find_benchmark(benchmark).source.needs:
            find(DATASETS[name], data_folders(planned.data))


def run(
    benchmark: str | None = None,
    methods: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    config: Path | str | None = None,
    tasks: int | None = None,
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

    Left out, they are finetune, ewc and caf-ewc on digits with the seeds 0 to 4, or what the file `config` says: TOML
    with benchmark, method, seeds and settings, as `kenyon search` writes it. What is said here wins over it.

    Keywords beyond these are settings, as with `--set`: epochs=20, lambda_sp=1e4. A list of values makes a grid:
    lambda_sp=[1e3, 1e4] gives results called ewc[lambda_sp=1000] and ewc[lambda_sp=10000]. What the folder `out`
    already holds is not trained again. `fwt=False` leaves out the reference that forward transfer needs; `fleet`
    bounds how many runs train together. `keep="every"` also keeps the weights after every task. `deterministic`: with
    PyTorch's deterministic algorithms, so that the numbers of a GPU repeat bit for bit; slower. `log`: also write
    the numbers to "tensorboard" or "wandb" while they come.
    """
    for name, meant in (("method", "methods"), ("seed", "seeds")):
        if name in overrides:
            raise ConfigError(f"kenyon.run takes {meant}=..., not {name}=....")
    names = None if methods is None else listed_names("methods", methods)
    if progress is not None:
        check_progress(progress)
    file = None if config is None else read_config(config)
    wanted = asked(file, None if benchmark is None else [benchmark], names, seeds, overrides)
    if len(wanted.benchmarks) > 1:
        raise ConfigError(
            f"{config} names {len(wanted.benchmarks)} benchmarks, and a call trains on one. Name one in the file; "
            "`kenyon run --config` and `kenyon sweep` take several."
        )
    return execute(
        plan(
            wanted.benchmarks[0],
            wanted.methods,
            wanted.seeds,
            tasks=tasks,
            overrides=wanted.settings,
            device=device,
            data=data,
            out=out,
            fwt=fwt,
            fleet=fleet,
            keep=keep,
            deterministic=deterministic,
            log=log,
        ),
        progress=progress,
    )
