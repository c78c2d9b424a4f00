"""Which points a search tries: a grid at once, or batches that learn from those before them.

Choose hyper-parameters: the points of a search are runs of one fleet, scored on held-out training data.

Nothing here can look at test data: a run of a search is cut from a source that has none (`kenyon.data.holdout`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import FIRST_SEED, SearchProtocol
from kenyon.data.holdout import SHORT
from kenyon.errors import ConfigError, optional_import, unknown
from kenyon.experiments.found import Found, Score, made_by, ranked
from kenyon.experiments.grid import Point, check_size, listed
from kenyon.experiments.progress import Progress, check_progress
from kenyon.experiments.results import Result
from kenyon.experiments.runner import Plan, check_fleet, check_folders, execute, source_of
from kenyon.experiments.spec import configure, kind_of, settings
from kenyon.experiments.store import method_folder
from kenyon.methods import find_method
from kenyon.training import choose_device
from kenyon.utils.files import as_path

Values = dict[str, Any]  # of the settings that vary
DIGITS = 3  # significant, of a proposed number: more say nothing, and fill the names of folders


class Proposals(Protocol):
    def ask(self) -> list[Values]:
        """Points to train together; none: it is enough."""

    def tell(self, scores: Sequence[float | None]) -> None:
        """The scores of those asked for, in per cent; None for one that did not stay finite."""


class Grid:
    """Every combination, all at once."""

    def __init__(self, grid: Mapping[str, Sequence[Any]]) -> None:
        self.waiting = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def ask(self) -> list[Values]:
        asked, self.waiting = self.waiting, []
        return asked

    def tell(self, scores: Sequence[float | None]) -> None:
        pass


class Sampled:
    """Optuna's tree-structured Parzen estimator, so many trials together.

    Numbers are drawn log-uniformly between the ends of their lists, words from their lists. The sampler has a seed
    and scores decide the rest, so an interrupted search that is asked again proposes the same points, and finds those
    that are trained.
    """

    def __init__(self, grid: Mapping[str, Sequence[Any]], trials: int, together: int) -> None:
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that parts of the sampler are called experimental
            sampler = optuna.samplers.TPESampler(seed=FIRST_SEED, multivariate=True, constant_liar=True)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.ranges = {name: _range(name, values, optuna.distributions) for name, values in grid.items()}
        self.left, self.together = trials, together
        self.asked: list[Any] = []

    def ask(self) -> list[Values]:
        count = min(self.left, self.together)
        self.asked = [self.study.ask(self.ranges) for _ in range(count)]
        self.left -= count
        return [{name: _rounded(trial.params[name]) for name in self.ranges} for trial in self.asked]

    def tell(self, scores: Sequence[float | None]) -> None:
        for trial, score in zip(self.asked, scores, strict=True):
            self.study.tell(trial, 0.0 if score is None else score)  # as bad as can be: not that way


def import_optuna() -> Any:
    with optional_import("--optuna (without it, a grid is tried)", "search", "optuna"):
        import optuna
    return optuna


def _range(name: str, values: Sequence[Any], distributions: Any) -> Any:
    if any(isinstance(value, (bool, str)) for value in values):
        return distributions.CategoricalDistribution(list(values))
    if min(values) <= 0:
        raise ConfigError(
            f"--optuna draws {name} on a logarithmic scale, on which {min(values):g} has no place. Give values above "
            "0, or try a grid."
        )
    if kind_of(name) is int:
        return distributions.IntDistribution(min(values), max(values), log=True)
    return distributions.FloatDistribution(float(min(values)), float(max(values)), log=True)


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


FOLDS = {"held-out": 1, "short": 3}  # unless told otherwise
TRIALS = 32
TOGETHER = 8  # trials that Optuna proposes at once


@dataclass(frozen=True)
class Sampling:
    """How Optuna is asked."""

    trials: int = TRIALS
    together: int = TOGETHER


@dataclass(frozen=True)
class Search:
    """What a search asks for, checked before anything is trained."""

    benchmark: str
    method: str
    protocol: SearchProtocol
    grid: dict[str, list[Any]]  # the settings that vary, in the order of the method's settings
    fixed: dict[str, Any]  # settings given for all points
    tasks: int | None
    seeds: tuple[int, ...]  # one a fold
    sampling: Sampling | None  # None: the whole grid
    device: torch.device
    data: Path | None
    out: Path
    most: int

    def point(self, values: Values) -> Point:
        overrides = self.fixed | values
        config = configure(self.benchmark, self.method, tasks=self.tasks, overrides=overrides, search=self.protocol)
        return Point(config, values)

    def proposals(self) -> Proposals:
        if self.sampling is None:
            return Grid(self.grid)
        return Sampled(self.grid, self.sampling.trials, self.sampling.together)

    @property
    def first(self) -> Point:
        """What all points have in common can be read from it."""
        return self.point({name: values[0] for name, values in self.grid.items()})

    @property
    def stream(self) -> str:
        """What the protocol changes of this benchmark's stream, in words."""
        whole = find_benchmark(self.benchmark).source.whole
        dealt = "the benchmark's own tasks, whose classes belong together" if whole else "classes dealt to tasks anew"
        return f"{dealt}; {'a few random ones a fold' if self.protocol.name == 'short' else 'in another order'}"


def plan_search(
    benchmark: str,
    method: str,
    *,
    protocol: str = "held-out",
    folds: int | None = None,
    share: float = SearchProtocol.share,
    tasks: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fleet: int | None = None,
) -> Search:
    """Check everything that `kenyon.search` is asked for, before anything is trained."""
    count = len(find_benchmark(benchmark).source.class_counts)
    how = SearchProtocol(protocol, share)  # type: ignore[arg-type]  # which says so if it is no protocol
    folds = FOLDS[how.name] if folds is None else folds
    for name, number in (
        ("folds", folds),
        ("trials", sampling and sampling.trials),
        ("together", sampling and sampling.together),
    ):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ConfigError(f"{name} must be a whole number, at least 1, not {number}.")
    grid, fixed = _varied(benchmark, method, listed(overrides or {}))
    if sampling is None:
        check_size([method], grid, folds)
    else:
        import_optuna()
    search = Search(
        benchmark,
        method,
        how,
        grid,
        fixed,
        min(SHORT, count) if tasks is None and how.name == "short" else tasks,
        tuple(range(FIRST_SEED, FIRST_SEED + folds)),
        sampling,
        choose_device(device),
        None if data is None else as_path("data", data),
        as_path("out", out),
        check_fleet(fleet),
    )
    if sampling is None:
        check_folders(search.out, [search.point(values) for values in Grid(grid).ask()])
    else:
        search.proposals()  # says which ranges are impossible
        check_folders(search.out, [search.first])
    return search


def _varied(benchmark: str, method: str, given: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Which settings vary, and the others that were given. Lists of the user's replace the published grid."""
    known = settings(method)
    for name in given:
        if name not in known:
            raise unknown(f"setting of {method}", name, known)
    lists = {name: values for name, values in given.items() if isinstance(values, list)}
    if not lists:
        grid = find_benchmark(benchmark).grid(method)
        lists = {name: list(values) for name, values in grid.items() if name not in given}
    single = {name: values[0] for name, values in lists.items() if len(values) == 1}
    varied = {name: lists[name] for name in known if name in lists and name not in single}
    fixed = {name: value for name, value in given.items() if name not in lists} | single
    if not varied:
        example = next(iter(lists or find_method(method).hyperparameters or ["rate"]))
        raise ConfigError(
            "There is nothing to choose from: no setting has several values. Give some, for example --set "
            f"{example}=VALUE,VALUE."
        )
    return varied, fixed


def execute_search(
    search: Search, *, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False
) -> Found:
    """Carry out a search, and write what it found as `best.toml`. Interrupted, it goes on when done again."""
    proposals = search.proposals()
    train = partial(execute, progress=progress, stop=stop, read=source_of(search.first.config, search.data))
    results: dict[str, Result] = {}
    while values := proposals.ask():
        points = [search.point(some) for some in values]
        trained = _train(search, points, train)
        results |= trained
        proposals.tell([_score(trained[point.label]) for point in points])
    found = _found(search, list(results.values()))
    if found.scores[0].aac is not None:
        found.save()
    return found


def _score(result: Result) -> float | None:
    aac = Score.of(result).aac
    return None if aac is None else aac.mean


def _train(search: Search, points: list[Point], train: Callable[[Plan], dict[str, Result]]) -> dict[str, Result]:
    once = tuple({point.name: point for point in points}.values())  # two proposals may be one
    check_folders(search.out, once)
    plan = Plan(once, (), search.seeds, search.device, search.data, search.out, search.most)
    if len(set(find_benchmark(search.benchmark).source.class_counts)) > 1:
        # Tasks of unequal numbers of classes come in another order in every fold: heads that cannot be one tensor.
        for seed in search.seeds:
            train(replace(plan, seeds=(seed,)))
    return train(plan)


def _found(search: Search, results: list[Result]) -> Found:
    config = search.first.config
    return Found(
        benchmark=search.benchmark,
        method=search.method,
        protocol=search.protocol,
        stream=search.stream,
        tasks=config.tasks,
        epochs=None if "epochs" in search.grid else config.training.epochs,
        seeds=search.seeds,
        fixed=search.fixed,
        scores=ranked(results),
        made=made_by(results, search=_how(search)),
        folder=method_folder(search.out, search.first),
    )


def _how(search: Search) -> str:
    if search.sampling is None:
        return f"grid of {prod(map(len, search.grid.values()))} points"
    return (
        f"optuna {import_optuna().__version__}, {search.sampling.trials} trials, {search.sampling.together} at once"
    )


def search(
    benchmark: str = "digits",
    method: str = "caf-ewc",
    *,
    protocol: str = "held-out",
    folds: int | None = None,
    share: float = SearchProtocol.share,
    tasks: int | None = None,
    optuna: bool = False,
    trials: int = TRIALS,
    together: int = TOGETHER,
    device: str = "auto",
    data: Path | str | None = None,
    out: Path | str = "results",
    fleet: int | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> Found:
    """Choose a method's hyper-parameters on a benchmark, without its test data.

    Keywords beyond these are settings: a list is what to choose from, lambda_sp=[1e4, 1e6]; without a list the
    published grid is taken. `protocol` "held-out": the whole sequence once, with other tasks, order and seed than
    reported runs have; "short": 5 random tasks, `folds` times. Scores are average accuracies on a `share` of the
    training data. With `optuna`, so many trials are drawn between the ends of the lists, some `together` at a time.
    """
    if progress is not None:
        check_progress(progress)
    asked = plan_search(
        benchmark,
        method,
        protocol=protocol,
        folds=folds,
        share=share,
        tasks=tasks,
        overrides=overrides,
        sampling=Sampling(trials, together) if optuna else None,
        device=device,
        data=data,
        out=out,
        fleet=fleet,
    )
    return execute_search(asked, progress=progress)
