"""Hyper-parameter search: the points of a grid, or points that Optuna proposes, scored on held-out training data.

A run of a search uses a source without test data (`kenyon.data.holdout`).
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
from kenyon.experiments.config import configure, kind_of, settings
from kenyon.experiments.found import Found, Score, made_by, ranked
from kenyon.experiments.grid import GridPoint, check_size, listed, lists_of
from kenyon.experiments.progress import Progress, check_progress
from kenyon.experiments.results import Result
from kenyon.experiments.runner import Plan, check_folders, execute, source_of
from kenyon.experiments.scheduler import MOST
from kenyon.experiments.spec import Experiment
from kenyon.experiments.store import method_folder
from kenyon.methods import find_method
from kenyon.training import choose_device
from kenyon.utils.files import as_path

Values = dict[str, Any]  # of the settings that vary
DIGITS = 3  # significant digits of a proposed number; they are in names of folders


class Proposals(Protocol):
    def ask(self) -> list[Values]:
        """Return points to train together, or none at the end."""

    def tell(self, scores: Sequence[float | None]) -> None:
        """Give the scores of these points, in per cent; None for one that did not stay finite."""


class Grid:
    """All combinations at once."""

    def __init__(self, grid: Mapping[str, Sequence[Any]]) -> None:
        self.waiting = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def ask(self) -> list[Values]:
        asked, self.waiting = self.waiting, []
        return asked

    def tell(self, scores: Sequence[float | None]) -> None:
        pass


class Sampled:
    """Batches of trials from Optuna's tree-structured Parzen estimator.

    Numbers are drawn log-uniformly between the ends of their lists, words from their lists. The proposals follow from
    the sampler's seed and the scores, so an interrupted search proposes the same points again.
    """

    def __init__(self, grid: Mapping[str, Sequence[Any]], trials: int, together: int) -> None:
        optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of the sampler are experimental
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
            self.study.tell(trial, 0.0 if score is None else score)  # the worst accuracy


def import_optuna() -> Any:
    with optional_import("--optuna (without it, a grid is tried)", "search", "optuna"):
        import optuna
    return optuna


def _range(name: str, values: Sequence[Any], distributions: Any) -> Any:
    if any(type(value) in (bool, str) for value in values):
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
    return float(f"{value:.{DIGITS}g}") if type(value) is float else value


FOLDS = {"held-out": 1, "short": 3}  # by default
TRIALS = 32
TOGETHER = 8  # trials that Optuna proposes at once


@dataclass(frozen=True)
class Sampling:
    """Settings of Optuna."""

    trials: int = TRIALS
    together: int = TOGETHER


@dataclass(frozen=True)
class Search:
    """The plan of a search, checked before anything is trained."""

    benchmark: str
    method: str
    protocol: SearchProtocol
    grid: dict[str, list[Any]]  # the settings that vary, in the order of the method's settings
    fixed: dict[str, Any]  # settings given for all points
    tasks: int | None
    seeds: tuple[int, ...]  # one for each fold
    sampling: Sampling | None  # None: the whole grid
    device: torch.device
    data: Path | None
    out: Path
    most: int

    def point(self, values: Values) -> GridPoint:
        overrides = self.fixed | values
        config = configure(self.benchmark, self.method, tasks=self.tasks, overrides=overrides, search=self.protocol)
        return GridPoint(config, values)

    def proposals(self) -> Proposals:
        if self.sampling is None:
            return Grid(self.grid)
        return Sampled(self.grid, self.sampling.trials, self.sampling.together)

    @property
    def first(self) -> GridPoint:
        """A point of the search, for what all points have in common."""
        return self.point({name: values[0] for name, values in self.grid.items()})

    @property
    def stream(self) -> str:
        """The changes of the benchmark's stream by the protocol, for people."""
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
    overrides: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    **options: Any,
) -> Search:
    """Check everything that `kenyon.search` is asked for, before anything is trained.

    `options`: fields of `Experiment`: tasks, device, data, out and fleet.
    """
    request = Experiment.of(benchmarks=(benchmark,), methods=(method,), settings=overrides, **options)
    count = len(find_benchmark(benchmark).source.class_counts)
    how = SearchProtocol(protocol, share)  # type: ignore[arg-type]  # raises for another name
    folds = FOLDS[how.name] if folds is None else folds
    for name, number in (
        ("folds", folds),
        ("trials", sampling and sampling.trials),
        ("together", sampling and sampling.together),
    ):
        if number is not None and (type(number) is not int or number < 1):
            raise ConfigError(f"{name} must be a whole number, at least 1, not {number}.")
    grid, fixed = _varied(benchmark, method, listed(request.settings))
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
        min(SHORT, count) if request.tasks is None and how.name == "short" else request.tasks,
        tuple(range(FIRST_SEED, FIRST_SEED + folds)),
        sampling,
        choose_device(request.device),
        None if request.data is None else as_path("data", request.data),
        as_path("out", request.out),
        request.fleet or MOST,
    )
    if sampling is None:
        check_folders(search.out, [search.point(values) for values in Grid(grid).ask()])
    else:
        search.proposals()  # raises for impossible ranges
        check_folders(search.out, [search.first])
    return search


def _varied(benchmark: str, method: str, given: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the settings that vary, and the others. Lists given by the user replace the published grid."""
    known = settings(method)
    for name in given:
        if name not in known:
            raise unknown(f"setting of {method}", name, known)
    lists = lists_of(given)
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
    """Carry out a search, and write its choice as `best.toml`. The same call continues an interrupted search."""
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


def _train(search: Search, points: list[GridPoint], train: Callable[[Plan], dict[str, Result]]) -> dict[str, Result]:
    once = tuple({point.name: point for point in points}.values())  # proposals may repeat
    check_folders(search.out, once)
    plan = Plan(once, (), search.seeds, search.device, search.data, search.out, search.most)
    if len(set(find_benchmark(search.benchmark).source.class_counts)) > 1:
        # The order of tasks differs between folds, so heads of unequal numbers of classes are not one tensor.
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

    Other keywords are settings: a list gives the values to choose from, lambda_sp=[1e4, 1e6]; without a list the
    published grid is used. `protocol` "held-out": the whole sequence once, with other tasks, order and seed than
    reported runs; "short": 5 random tasks, `folds` times. Scores are average accuracies on a `share` of the training
    data. With `optuna`, `trials` points are drawn between the ends of the lists, `together` at a time.
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
