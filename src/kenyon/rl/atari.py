"""The eight Atari games of the paper, emulated by ale-py's own vector environment: `pip install 'kenyon[atari]'`.

An observation is 4 grey frames of 84 x 84, the newest last. An action lasts 4 frames, of which the last two are
merged by their maximum. Actions are each game's minimal set: these have the published sizes. An episode begins with
up to 30 frames, drawn at random, in which nothing is done, except that the first presses FIRE where the game has it;
the stack is black before. It ends with the game, or after 108,000 frames. In training, rewards are clipped to their
sign and a lost life counts as an end, but the game goes on: the stack keeps its frames and nothing begins anew.

ale-py offers `episodic_life` and `reward_clipping` as well. They are not used: the former would begin the whole game
anew at every lost life, so that nothing but first lives were ever seen, and the latter would hide the score.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError
from kenyon.random import key
from kenyon.rl.emulators import COLOUR, SKIP, check_rom, emulators, shared, usual_parts
from kenyon.rl.environment import Moment, Pixels, Screen, Suite, register

GAMES = {
    "DemonAttack": ("demon_attack", 6),
    "Robotank": ("robotank", 18),
    "Boxing": ("boxing", 18),
    "NameThisGame": ("name_this_game", 6),
    "StarGunner": ("star_gunner", 18),
    "Gopher": ("gopher", 8),
    "VideoPinball": ("video_pinball", 9),
    "CrazyClimber": ("crazy_climber", 9),
}
SHAPE = (4, 84, 84)
STICKY = 0.25  # of Machado et al. (2018), for the suite that has sticky actions


def seeds_of(game: str, copies: int, seed: int, first: int = 0) -> npt.NDArray[np.int64]:
    """One for every copy from the first on: ale-py takes 31 bits, and of one whole number would make overlapping
    ones.
    """
    words = seed, crc32(game.encode())
    return np.array([key(*words, copy) & 0x7FFFFFFF for copy in range(first, first + copies)], dtype=np.int64)


class AtariGames:
    """Copies of one game, stepped together. They cannot be saved."""

    shape = SHAPE

    def __init__(self, emulated: Any, game: str, copies: int, seed: int, training: bool, first: int = 0) -> None:
        """Over a vector environment as `emulators` makes it. `first`: how many copies are in the groups before."""
        self.emulated, self.game, self.training, self.first = emulated, game, training, first
        self.count, self.actions = copies, int(emulated.single_action_space.n)
        self.reseed(seed)
        self._score = np.zeros(self.count, dtype=np.float64)  # of the episode so far
        self._lives = np.zeros(self.count, dtype=np.int64)

    def reset(self) -> Pixels:
        observations, info = self.emulated.reset(seed=self.seeds)
        self._score = np.zeros(self.count, dtype=np.float64)
        self._lives = info["lives"]
        return observations

    def reseed(self, seed: int) -> None:
        self.seeds = seeds_of(self.game, self.count, seed, self.first)

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        observations, raw, terminated, truncated, info = self.emulated.step(np.asarray(actions, dtype=np.int64))
        over = terminated | truncated  # then observations and lives are of the next episode
        self._score = self._score + raw
        scores = [(int(copy), float(self._score[copy])) for copy in np.flatnonzero(over)]
        self._score = np.where(over, 0.0, self._score)
        lives = info["lives"]
        lost = (lives < self._lives) & (lives > 0)  # a game without lives shows 0 all the time
        self._lives = lives
        if self.training:
            return Moment(observations, np.sign(raw).astype(np.float32), over | lost, scores)
        return Moment(observations, raw.astype(np.float32), over, scores)

    def save(self) -> None:
        """The emulators keep their state to themselves."""
        return

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        raise ConfigError("Atari games cannot go on from a saved moment. Begin their episodes anew.")

    def close(self) -> None:
        self.emulated.close()
        self.emulated = None  # which ends ale-py's threads


class AtariScreen:
    """One copy as evaluation plays it, and the colour screen of a second emulator that does the same."""

    rate = 60 / SKIP  # actions a second, as the console plays

    def __init__(self, game: str, seed: int, sticky: float = 0.0) -> None:
        self.games = make(game, 1, seed, False, sticky=sticky)
        self._coloured = emulators(game, GAMES[game][0], 1, sticky, COLOUR)
        self._seen: Pixels = np.zeros((0,), dtype=np.uint8)

    def reset(self) -> Pixels:
        self._seen, _ = self._coloured.reset(seed=self.games.seeds)
        return self.games.reset()

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        self._seen, *_ = self._coloured.step(np.asarray(actions, dtype=np.int64))
        return self.games.step(actions)

    def picture(self) -> Pixels:
        return self._seen[0, -1]

    def close(self) -> None:
        self.games.close()
        self._coloured.close()
        self._coloured = None


def make(game: str, copies: int, seed: int, training: bool, *, sticky: float = 0.0, parts: int = 0) -> AtariGames:
    """`parts`: among how many processes the copies are shared out; see `emulators`."""
    SUITE.check([game])
    emulated = emulators(game, GAMES[game][0], copies, sticky, parts=parts)
    return _checked(AtariGames(emulated, game, copies, seed, training))


def make_in_turns(
    game: str, copies: int, seed: int, training: bool, *, sticky: float = 0.0, parts: int = 0
) -> list[AtariGames]:
    """The same copies in two groups that all processes share out; in one where processes are not worth it."""
    parts = parts or usual_parts(copies)
    if parts < 2:
        return [make(game, copies, seed, training, sticky=sticky)]
    SUITE.check([game])
    check_rom(game, GAMES[game][0])
    groups, first = [], 0
    for group in shared(GAMES[game][0], copies, sticky, parts, turns=2):
        groups.append(_checked(AtariGames(group, game, len(group.board), seed, training, first)))
        first += len(group.board)
    return groups


def _checked(games: AtariGames) -> AtariGames:
    if games.actions != GAMES[games.game][1]:
        raise ConfigError(
            f"This ale-py gives {games.actions} actions for {games.game}, not the published {GAMES[games.game][1]}."
        )
    return games


def _screen(game: str, seed: int, *, sticky: float = 0.0) -> Screen:
    SUITE.check([game])
    return AtariScreen(game, seed, sticky)


def _suite(name: str, about: str, sticky: float) -> Suite:
    actions = {game: size for game, (_, size) in GAMES.items()}
    screen, in_turns = partial(_screen, sticky=sticky), partial(make_in_turns, sticky=sticky)
    return Suite(name, about, actions, SHAPE, partial(make, sticky=sticky), screen, in_turns)


SUITE = register(_suite("atari", "eight Atari games in the published order", 0.0))
register(
    _suite("atari-sticky", f"the same with sticky actions: each frame repeats the last one with {STICKY}", STICKY)
)
