"""The unit of work: a fleet, what a worker needs to know to train it, and how it ended.

What a sweep trains: images or games. How each is planned, trained and gathered.

Everything else that a sweep wants to know, configurations and results say themselves (`Configured`, `Kept`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from kenyon.benchmarks.registry import find_benchmark
from kenyon.data import Source
from kenyon.errors import ConfigError
from kenyon.experiments.grid import AnyCell, AnyPoint
from kenyon.experiments.results import Kept, Result
from kenyon.experiments.runner import REFERENCE, gather, plan
from kenyon.experiments.spec import Config, Configured, settings
from kenyon.experiments.spec_file import Asked
from kenyon.experiments.training import Crew, train_crew
from kenyon.experiments.unfinished import identity_of
from kenyon.rl.config import GamesConfig
from kenyon.rl.config import settings as settings_of_games
from kenyon.rl.results import GameResult
from kenyon.rl.runner import GameCrew, gather_scores, plan_games, train_games
from kenyon.rl.suites import ARENAS
from kenyon.sweep.storage import FLEETS, MARKS, Space
from kenyon.utils.determinism import deterministic

Key = tuple[str, str, int]  # of a run in a sweep: benchmark, label and seed


@dataclass(frozen=True)
class Fleet:
    """Runs of one structure that train together, on whatever machine, with an identity that all agree on."""

    cells: tuple[AnyCell, ...]

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(identity_of(self.cells).encode()).hexdigest()[:12]

    @property
    def benchmark(self) -> str:
        return self.cells[0].config.benchmark

    @property
    def points(self) -> list[AnyPoint]:
        return list({cell.point.name: cell.point for cell in self.cells}.values())

    @staticmethod
    def key(cell: AnyCell) -> Key:
        return cell.config.benchmark, cell.point.label, cell.seed

    @property
    def keys(self) -> list[Key]:
        return [self.key(cell) for cell in self.cells]

    @property
    def folder(self) -> str:
        return f"{FLEETS}/{self.id}"

    @property
    def label(self) -> str:
        config, points, seeds = self.cells[0].config, self.points, sorted({cell.seed for cell in self.cells})
        name = points[0].label if len(points) == 1 else f"{config.method}, {len(points)} points"
        last = "" if len(seeds) == 1 else f" to {seeds[-1]}" if seeds[-1] - seeds[0] == len(seeds) - 1 else " ..."
        return f"{name} on {config.benchmark}, seed {seeds[0]}{last}"


@dataclass(frozen=True)
class Order:
    """Small, and can be sent to any machine that has Kenyon and sees the store."""

    store: str
    fleet: Fleet
    files: tuple[str, ...] = ()  # that define the user's own benchmarks
    # Of images:
    data: Path | None = None
    keep_every: bool = False
    deterministic: bool = False
    # Of the moment:
    over: bytes = b""  # what a lease of this fleet says that is known to be over
    device: str = "cpu"  # the place knows


DONE, TAKEN, STOPPED, FAILED, DIED = "done", "taken", "stopped", "failed", "died"


@dataclass(frozen=True)
class Outcome:
    """How the work on a fleet ended. Of one that came to its end this is left in the store, as its mark."""

    end: str
    why: str = ""  # of what is missing
    without: list[tuple[str, int]] = field(default_factory=list)  # label and seed of runs that found no room
    seconds: float = 0.0  # of training, over all sessions
    device: str = ""

    def lost(self, runs: int) -> int:
        """How many of a fleet's runs are missing."""
        return len(self.without) if self.end == DONE else runs

    def save(self, space: Space, fleet: str) -> None:
        space.write(f"{MARKS}/{fleet}", json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, space: Space, fleet: str) -> Outcome | None:
        """None: there is none, or none that can be read."""
        try:
            body: dict[str, Any] = json.loads(space.read(f"{MARKS}/{fleet}") or b"")
            mark = cls(**body | {"without": [(str(label), int(seed)) for label, seed in body["without"]]})
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        told = isinstance(mark.why, str) and isinstance(mark.device, str) and mark.end in (DONE, FAILED)
        return mark if told and type(mark.seconds) in (int, float) and 0 <= mark.seconds < 1e15 else None


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
