"""The training regime of a suite of games, as data: PPO, evaluations and how importance is measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from kenyon.errors import ConfigError
from kenyon.train.regime import check_fields

Acting = Literal["likely", "drawn"]
Anchors = Literal["published", "each", "last"]


@dataclass(frozen=True)
class Ppo:
    """Defaults: Atari, as published.

    acting likely: evaluations always take the most likely action. drawn: actions are drawn as in training, so that a
    policy which hardly prefers any plays at random instead of repeating one.

    anchors each: every game's importance pulls towards the weights that this game left. last: all of it pulls towards
    those of the game before, as for images. published: each for importances that are measured on rollouts, last for
    those from the way (SI, RWalk).
    """

    steps: int = 5_000_000  # of every game, all copies together
    copies: int = 128  # of a game, played at once
    horizon: int = 64  # steps of every copy between updates
    epochs: int = 10  # passes over what was seen, an update
    minibatches: int = 64  # a pass
    clip: float = 0.2  # of the ratio of probabilities, and of the change of values
    discount: float = 0.99
    gae: float = 0.95  # lambda of the generalised advantage estimate
    entropy: float = 0.0
    value: float = 0.5  # coefficient of the value loss
    rate: float = 3e-4  # falls linearly to 0 over the updates of a game
    epsilon: float = 1e-5  # of Adam
    norm: float = 0.5  # of the gradient of a run, penalties included
    evaluations: int = 30  # a game, and at most one an update
    episodes: int = 10  # an evaluation and game
    acting: Acting = "likely"
    longest: int = 30_000  # steps of an episode that is scored: one that has not ended by then, as it stands
    importance_rollouts: int = 100
    importance_steps: int = 20  # of every copy that are new in such a rollout, which is as long as training's
    anchors: Anchors = "published"
    penalties_from: int = 2  # the game, counted from 1, from which on penalties on weights act

    def __post_init__(self) -> None:
        check_fields(self)
        whole = ("copies", "horizon", "epochs", "minibatches", "evaluations", "episodes", "longest")
        for name in (*whole, "importance_rollouts", "importance_steps", "penalties_from"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("clip", "rate", "epsilon", "norm"):
            value = getattr(self, name)
            if not isfinite(value) or value <= 0:
                raise ConfigError(f"{name} must be a finite number above 0, not {value}.")
        for name in ("entropy", "value"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise ConfigError(f"{name} must be a finite number, 0 or larger, not {value}.")
        for name in ("discount", "gae"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a number from 0 to 1, not {getattr(self, name)}.")
        for name, words in (("acting", get_args(Acting)), ("anchors", get_args(Anchors))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} must be {', '.join(words)}, not '{getattr(self, name)}'.")
        if self.samples % self.minibatches:
            raise ConfigError(
                f"copies x horizon = {self.copies} x {self.horizon} cannot be dealt into {self.minibatches} equal "
                "minibatches. Change copies, horizon or minibatches."
            )
        if self.updates < 1:
            raise ConfigError(
                f"steps={self.steps:,} is too few for one update: {self.copies} copies x {self.horizon} steps need "
                f"{self.samples:,}. Ask for more steps, or set copies and horizon lower."
            )

    @property
    def samples(self) -> int:
        """Of an update."""
        return self.copies * self.horizon

    @property
    def updates(self) -> int:
        """Of a game."""
        return self.steps // self.samples

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The numbers of updates after which games are evaluated, evenly spaced; the last is the end of the game."""
        count = min(self.evaluations, self.updates)
        return tuple((n + 1) * self.updates // count for n in range(count))
