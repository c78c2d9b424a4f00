"""What a sweep trains: images or games. How each is planned, trained and gathered.

Everything else that a sweep wants to know, configurations and results say themselves (`Configured`, `Kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from kenyon.errors import ConfigError
from kenyon.experiments.benchmarks import find_benchmark
from kenyon.experiments.config import Config, settings
from kenyon.experiments.config_file import Asked
from kenyon.experiments.configured import Configured
from kenyon.experiments.grid import AnyPoint
from kenyon.experiments.kept import Kept
from kenyon.experiments.results import Result
from kenyon.experiments.runner import REFERENCE, gather, plan
from kenyon.experiments.training import Crew, train_crew
from kenyon.rl.arenas import ARENAS
from kenyon.rl.config import GamesConfig
from kenyon.rl.config import settings as settings_of_games
from kenyon.rl.results import GameResult
from kenyon.rl.runner import GameCrew, gather_scores, plan_games, train_games
from kenyon.streams import Source
from kenyon.sweep.orders import Order
from kenyon.train.determinism import deterministic


class AnyPlan(Protocol):
    """What is asked for of one benchmark, checked."""

    @property
    def points(self) -> Sequence[AnyPoint]:
        """Method after method, in the order asked for."""
        ...

    @property
    def methods(self) -> Sequence[Sequence[AnyPoint]]:
        """All points to train, a list a method."""
        ...

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def out(self) -> Path: ...


@dataclass(frozen=True)
class Options:
    """What is said beside an experiment's file."""

    fleet: int | None = None  # runs that train together, at most
    # Of images alone:
    tasks: int | None = None
    data: Path | None = None
    fwt: bool = True
    keep: str = "last"
    deterministic: bool = False

    def check_for_games(self, suites: Sequence[str]) -> None:
        """That nothing is said that means nothing to games."""
        given = {
            "--tasks": self.tasks is not None,
            "--data": self.data is not None,
            "--keep-every-task": self.keep != "last",
            "--deterministic": self.deterministic,
        }
        for option, said in given.items():
            if said:
                raise ConfigError(f"{option} is for images, and {', '.join(suites)} has games. Leave it out.")


@dataclass(frozen=True)
class Kind:
    results: type[Kept[Any, Any]]
    configured: Callable[[Mapping[str, Any]], Configured]  # from what stands in a result
    settings: Callable[[str], Sequence[str]]  # of a method
    plan: Callable[[str, Asked, Path, Options], AnyPlan]  # (benchmark, what is asked, folder of results, options)
    gather: Callable[..., Mapping[str, Kept[Any, Any]]]  # (plan, points of one method): what is there, by label
    train: Callable[..., None]  # (crew, order), and by name: device, out, progress, stop


def kind_of(benchmark: str) -> Kind:
    return GAMES if benchmark in ARENAS else IMAGES


def _plan_images(benchmark: str, wanted: Asked, out: Path, options: Options) -> AnyPlan:
    return plan(
        benchmark,
        wanted.methods,
        wanted.seeds,
        tasks=options.tasks,
        overrides=wanted.settings,
        device="cpu",  # of the plan alone: every worker has its own
        data=options.data,
        out=out,
        fwt=options.fwt,
        fleet=options.fleet,
        keep=options.keep,
        deterministic=options.deterministic,
    )


def _plan_games(suite: str, wanted: Asked, out: Path, options: Options) -> AnyPlan:
    return plan_games(
        suite,
        wanted.methods,
        wanted.seeds,
        games=wanted.games,
        overrides=wanted.settings,
        device="cpu",
        out=out,
        fleet=options.fleet,
    )


def _train_images(crew: Crew, order: Order, **watched: Any) -> None:
    config = crew.cells[0].config
    every, source = order.keep_every and config.method != REFERENCE, _source(config.benchmark, order.data)
    with deterministic(order.deterministic):
        train_crew(crew, source, keep_every=every, **watched)


def _train_games(crew: GameCrew, order: Order, **watched: Any) -> None:
    train_games(crew, **watched)


@lru_cache(maxsize=1)
def _source(benchmark: str, data: Path | None) -> Source:
    """The images of one benchmark stay in memory from fleet to fleet."""
    return find_benchmark(benchmark).source.load(data)


IMAGES = Kind(Result, Config.from_dict, settings, _plan_images, gather, _train_images)
GAMES = Kind(GameResult, GamesConfig.from_dict, settings_of_games, _plan_games, gather_scores, _train_games)
KINDS = (IMAGES, GAMES)
