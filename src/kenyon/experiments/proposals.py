"""Which points a search tries: a grid at once, or batches that learn from those before them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from kenyon.errors import ConfigError, optional_import
from kenyon.experiments.config import kind_of
from kenyon.streams import FIRST_SEED

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
