"""Games as learners meet them: many copies of one game, stepped together, and suites of games in an order.

Whatever plays, Atari or a few lines of NumPy, looks like this to the learning loop.
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
    """What one step of N copies gives."""

    observations: Pixels  # after the step; where an episode has ended, the first of the next one
    rewards: npt.NDArray[np.float32]  # (N,) as training sees them; in evaluation they add up to the score
    ended: npt.NDArray[np.bool_]  # (N,) no value flows back across: the episode is over, in training also a lost life
    scores: Sequence[tuple[int, float]]  # (copy, raw score) of every whole episode that ended in this step


class Games(Protocol):
    """N copies of one game. A copy whose episode has ended begins the next one by itself."""

    count: int
    actions: int
    shape: tuple[int, int, int]  # of an observation

    def reset(self) -> Pixels:
        """Begin everywhere anew; the same seed begins alike."""

    def reseed(self, seed: int) -> None:
        """From the next `reset` on, play as if made with this seed: making games may take long."""

    def step(self, actions: npt.NDArray[np.int64]) -> Moment: ...

    def save(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """Everything that decides what comes next, or None where the game cannot tell."""

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        """Go on from what `save` gave; the observations as they stood."""

    def close(self) -> None: ...


class Screen(Protocol):
    """One copy of a game, as evaluation plays it, with a picture for people."""

    rate: float  # steps a second at which it is to be watched

    def reset(self) -> Pixels: ...

    def step(self, actions: npt.NDArray[np.int64]) -> Moment: ...

    def picture(self) -> Pixels:
        """(H, W, 3), as it stands; after the step that ends an episode it may show the next one."""

    def close(self) -> None: ...


# (game, copies, seed, whether training plays: lost lives end and rewards are clipped where the suite does so)
Maker = Callable[[str, int, int, bool], Games]


@dataclass(frozen=True)
class Suite:
    """Games that are learned one after another by one network."""

    name: str
    about: str
    actions: Mapping[str, int]  # game -> how many, in the order of learning
    shape: tuple[int, int, int]
    make: Maker
    screen: Callable[[str, int], Screen] | None = None  # (game, seed); None: what is seen is what is observed
    # As `make`, but the copies in groups, one behind another, of which some can be stepped while the network looks at
    # others, by the same cores; for games that cannot be saved
    make_in_turns: Callable[[str, int, int, bool], Sequence[Games]] | None = None

    @property
    def games(self) -> tuple[str, ...]:
        return tuple(self.actions)

    def check(self, games: Sequence[str]) -> None:
        for game in games:
            if not isinstance(game, str) or game not in self.actions:
                raise unknown(f"game of {self.name}", game, self.actions)


SUITES: dict[str, Suite] = {}


def register(suite: Suite) -> Suite:
    """Make a suite of games known by its name."""
    SUITES[suite.name] = suite
    return suite


def find_suite(name: str) -> Suite:
    """The suite of that name; otherwise an error that names the nearest ones."""
    if name not in SUITES:
        raise unknown("suite of games", name, SUITES)
    return SUITES[name]
