"""The configuration of games that are learned one after another: all that decides the numbers, except the seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from kenyon.errors import ConfigError, unknown
from kenyon.experiments.spec import (
    Architecture,
    architecture_settings,
    build_architecture,
    changed_settings,
    check_kind,
    take,
)
from kenyon.methods import METHODS, Method, MethodSpec, find_method
from kenyon.methods.base import LEARN
from kenyon.models import Net
from kenyon.rl.importance import check_importance
from kenyon.rl.ppo import Ppo
from kenyon.rl.results import GameResult
from kenyon.rl.suites import find_arena
from kenyon.utils.user_code import code_digests


@dataclass(frozen=True)
class GamesConfig:
    benchmark: str  # the suite
    method: str
    games: tuple[str, ...]  # in the order of learning
    training: Ppo
    architecture: Architecture
    hyper: dict[str, Any]
    own: dict[str, str] = field(default_factory=dict)  # what is a user's own, and a digest of its code

    kept: ClassVar = GameResult

    @property
    def folder(self) -> Path:
        """Of its scores below OUT."""
        return Path(self.benchmark, self.method)

    @property
    def structure(self) -> str:
        """All of it: points of a grid train apart, for it is their games that take the time."""
        return json.dumps(self.as_dict(), sort_keys=True)

    @property
    def length(self) -> float:
        """Thousands of steps of a run, all games."""
        return len(self.games) * self.training.updates * self.training.samples / 1000

    @property
    def usual_rate(self) -> float:
        """The learning rate of the suite."""
        return find_arena(self.benchmark).ppo.rate

    @property
    def demand(self) -> tuple[str, str]:
        """What a run asks of a device's memory, besides its network, and how to ask for less."""
        ppo = self.training
        said = f"{ppo.copies} copies of a game, {ppo.horizon} steps, {ppo.minibatches} minibatches"
        return said, "fewer copies or more minibatches (copies=..., minibatches=...)"

    @property
    def changes(self) -> tuple[list[str], dict[str, Any]]:
        """What differs from the published configuration: words for the command line, and settings."""
        usual = configure_games(self.benchmark, self.method, overrides=self.hyper)
        hyper = dict(find_arena(self.benchmark).hyperparameters.get(self.method, {}))
        words = [] if self.games == usual.games else ["--games", ",".join(self.games)]
        return words, changed_settings(self.as_dict(), usual.as_dict() | {"hyper": hyper})

    def build_method(self) -> Method:
        return find_method(self.method)(self.hyper)

    def build_net(self, device: torch.device | str = "cpu") -> Net:
        shape = self.architecture
        return find_arena(self.benchmark).net(
            self.games,
            shape.width,
            shape.learners,
            self.build_method(),
            device=device,
            diversity=shape.diversity,
            gate=shape.gate,
            dtype=None if shape.precision == "auto" else getattr(torch, shape.precision),
        )

    def as_dict(self) -> dict[str, Any]:
        body = asdict(self) | {"games": list(self.games), "architecture": self.architecture.as_dict()}
        return {name: part for name, part in body.items() if part or name != "own"}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> GamesConfig:
        parts = {"training": Ppo, "architecture": Architecture}
        try:
            body = {name: parts[name](**value) if name in parts else value for name, value in saved.items()}
            return cls(**body | {"games": tuple(saved["games"])})
        except (TypeError, ValueError, LookupError) as error:
            raise ConfigError(
                f"What was saved is no configuration of this version of Kenyon ({error}). Update Kenyon, or run anew."
            ) from error


def playable(spec: MethodSpec) -> bool:
    """Whether a method is one for games: penalties and importances are, what acts on a task's images is not."""
    return _plays(spec.example)


def _plays(method: Method) -> bool:
    ordinary = method.stages == (LEARN,) and not (method.mechanisms or method.replay or method.apart)
    return ordinary and method.schedule in ("sequential", "restart")


def settings(method: str, made: Method | None = None) -> tuple[str, ...]:
    """Everything `--set` may name for a method that learns games; `made`: where its values are known."""
    regime, spec = (f.name for f in fields(Ppo)), find_method(method)
    return (*regime, *_shape_settings(made or spec.example), *spec.settings)


def _shape_settings(made: Method) -> tuple[str, ...]:
    """Heads of games begin nearly even anyway."""
    return tuple(name for name in architecture_settings(made) if name != "first_heads")


def configure_games(
    arena_name: str,
    method: str,
    *,
    games: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> GamesConfig:
    """The published configuration of a method on a suite of games, with the user's overrides."""
    arena, spec = find_arena(arena_name), find_method(method)
    if not playable(spec):
        raise _unplayable(method)
    suite = arena.suite
    chosen = suite.games if games is None else tuple(games)
    if not chosen:
        raise ConfigError(f"No game is named. {arena_name} has {', '.join(suite.games)}.")
    suite.check(chosen)
    if len(set(chosen)) != len(chosen):
        raise ConfigError(f"A game is named twice in {','.join(chosen)}.")
    given = dict(overrides or {})
    for name, value in given.items():
        check_kind(name, value)
    training = replace(arena.ppo, **take(given, Ppo))
    theirs = {name: given.pop(name) for name in list(given) if name in spec.settings}
    if theirs.get("definition", "published") != "published":
        raise ConfigError("For games there is the published definition alone. Set single switches instead.")
    hyper = spec.resolve(theirs, arena.hyperparameters.get(method, {}))
    made = spec(hyper)  # says what is missing or impossible
    if not _plays(made):
        raise _unplayable(method)
    check_importance(made, training.anchors)
    shape = {name: given.pop(name) for name in list(given) if name in _shape_settings(made)}
    learners = shape.pop("learners", made.learners)
    architecture = build_architecture(learners, partial(arena.width_for, learners), shape)
    if given:
        raise unknown(f"setting of {method}", next(iter(given)), settings(method, made))
    return GamesConfig(arena_name, method, chosen, training, architecture, hyper, code_digests(method=spec.build))


def _unplayable(method: str) -> ConfigError:
    some = ", ".join(name for name, other in METHODS.items() if playable(other))
    return ConfigError(f"{method} works on the images of a task, and games have none. For games there are: {some}.")
