"""Interfaces of games: many copies of one game that are stepped together, and suites of games in an order.

Atari and games in a few lines of NumPy look alike to the learning loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kenyon.errors import unknown

Pixels = npt.NDArray[np.uint8]  # (N, C, H, W)


@dataclass(frozen=True)
class Moment:
    """The result of one step of N copies."""

    observations: Pixels  # after the step; if an episode has ended, the first of the next one
    rewards: npt.NDArray[np.float32]  # (N,) as training uses them; in evaluation they add up to the score
    ended: npt.NDArray[
        np.bool_
    ]  # (N,) values do not propagate back across: end of episode, in training also of a life
    scores: Sequence[tuple[int, float]]  # (copy, raw score) of every whole episode that ended in this step


class Games(Protocol):
    """N copies of one game. A copy whose episode has ended begins the next one by itself."""

    count: int
    actions: int
    shape: tuple[int, int, int]  # of an observation

    def reset(self) -> Pixels:
        """Begin new episodes in all copies; the same seed gives the same episodes."""

    def reseed(self, seed: int) -> None:
        """From the next `reset` on, play as if made with this seed: making games may take long."""

    def step(self, actions: npt.NDArray[np.int64]) -> Moment: ...

    def save(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """Return the whole state, or None if the game cannot be saved."""

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        """Restore a state from `save`; return its observations."""

    def close(self) -> None: ...


class Screen(Protocol):
    """One copy of a game, as evaluation plays it, with a picture for people."""

    rate: float  # steps per second at which to show it

    def reset(self) -> Pixels: ...

    def step(self, actions: npt.NDArray[np.int64]) -> Moment: ...

    def picture(self) -> Pixels:
        """Return the present picture, (H, W, 3); after a step that ends an episode it may show the next one."""

    def close(self) -> None: ...


# (game, copies, seed, training): if training, suites may end episodes at lost lives and clip rewards
Maker = Callable[[str, int, int, bool], Games]


@dataclass(frozen=True)
class Suite:
    """Games that one network learns one after another."""

    name: str
    about: str
    actions: Mapping[str, int]  # game -> number of actions, in the order of learning
    shape: tuple[int, int, int]
    make: Maker
    screen: Callable[[str, int], Screen] | None = None  # (game, seed); None: show the observations
    # As `make`, but the copies in groups that are stepped alternately: the network computes the actions of one group
    # while another is stepped. For games that cannot be saved.
    make_in_turns: Callable[[str, int, int, bool], Sequence[Games]] | None = None

    @property
    def games(self) -> tuple[str, ...]:
        return tuple(self.actions)

    def check(self, games: Sequence[str]) -> None:
        """Raise an error that names a game which is not in the suite."""
        for game in games:
            if game not in self.games:
                raise unknown(f"game of {self.name}", game, self.actions)


SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite of games known by its name."""
    SUITES[suite.name] = suite
    return suite


def find_suite(name: str) -> Suite:
    """Return the suite of that name, or raise an error that names the nearest ones."""
    if name not in SUITES:
        raise unknown("suite of games", name, SUITES)
    return SUITES[name]
