"""The eight Atari games of the paper, by ale-py's vector environment: `pip install 'kenyon[atari]'`.

An observation is 4 grey frames of 84 x 84, the newest last. An action lasts 4 frames, of which the last two are
merged by their maximum. Actions are each game's minimal set: these have the published sizes. An episode begins with
a random number of up to 30 frames without an action, except that the first presses FIRE in games that have it; the
frames before are black. It ends with the game, or after 108,000 frames. In training, rewards are clipped to their
sign and a lost life counts as an end, but the game continues: the frames stay and there is no reset.

ale-py's `episodic_life` and `reward_clipping` are not used: the former resets the whole game at every lost life, so
that only first lives would be played, and the latter hides the score.
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
from kenyon.rl.atari_envs import COLOUR, SKIP, atari_envs, check_rom, default_parts, shared_envs
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
STICKY = 0.25  # probability of sticky actions (Machado et al. 2018), in the suite that has them


def seeds_of(game: str, copies: int, seed: int, first: int = 0) -> npt.NDArray[np.int64]:
    """Return the seeds of copies, from the copy `first` on. ale-py takes 31 bits per copy; from a single number it
    would make seeds that overlap.
    """
    words = seed, crc32(game.encode())
    return np.array([key(*words, copy) & 0x7FFFFFFF for copy in range(first, first + copies)], dtype=np.int64)


class AtariGames:
    """Copies of one game, stepped together. They cannot be saved."""

    shape = SHAPE

    def __init__(self, envs: Any, game: str, copies: int, seed: int, training: bool, first: int = 0) -> None:
        """`envs`: a vector environment from `atari_envs`. `first`: the number of copies in earlier groups."""
        self.envs, self.game, self.training, self.first = envs, game, training, first
        self.count, self.actions = copies, int(envs.single_action_space.n)
        self.reseed(seed)
        self._score = np.zeros(self.count, dtype=np.float64)  # of the present episode
        self._lives = np.zeros(self.count, dtype=np.int64)

    def reset(self) -> Pixels:
        observations, info = self.envs.reset(seed=self.seeds)
        self._score = np.zeros(self.count, dtype=np.float64)
        self._lives = info["lives"]
        return observations

    def reseed(self, seed: int) -> None:
        self.seeds = seeds_of(self.game, self.count, seed, self.first)

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        observations, raw, terminated, truncated, info = self.envs.step(np.asarray(actions, dtype=np.int64))
        over = terminated | truncated  # then observations and lives are those of the next episode
        self._score = self._score + raw
        scores = [(int(copy), float(self._score[copy])) for copy in np.flatnonzero(over)]
        self._score = np.where(over, 0.0, self._score)
        lives = info["lives"]
        lost = (lives < self._lives) & (lives > 0)  # games without lives always report 0
        self._lives = lives
        if self.training:
            return Moment(observations, np.sign(raw).astype(np.float32), over | lost, scores)
        return Moment(observations, raw.astype(np.float32), over, scores)

    def save(self) -> None:
        """ale-py's vector environment does not give its state."""
        return

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        raise ConfigError("Atari games cannot be resumed from a saved state. Begin new episodes.")

    def close(self) -> None:
        self.envs.close()
        self.envs = None  # ends ale-py's threads


class AtariScreen:
    """One copy as evaluation plays it, and the colour screen of a second environment that does the same."""

    rate = 60 / SKIP  # actions per second, in the console's own time

    def __init__(self, game: str, seed: int, sticky: float = 0.0) -> None:
        self.games = make(game, 1, seed, False, sticky=sticky)
        self._coloured = atari_envs(game, GAMES[game][0], 1, sticky, COLOUR)
        self._screen: Pixels = np.zeros((0,), dtype=np.uint8)

    def reset(self) -> Pixels:
        self._screen, _ = self._coloured.reset(seed=self.games.seeds)
        return self.games.reset()

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        self._screen, *_ = self._coloured.step(np.asarray(actions, dtype=np.int64))
        return self.games.step(actions)

    def picture(self) -> Pixels:
        return self._screen[0, -1]

    def close(self) -> None:
        self.games.close()
        self._coloured.close()
        self._coloured = None


def make(game: str, copies: int, seed: int, training: bool, *, sticky: float = 0.0, parts: int = 0) -> AtariGames:
    """Make copies of a game, divided among `parts` processes; see `atari_envs`."""
    SUITE.check([game])
    envs = atari_envs(game, GAMES[game][0], copies, sticky, parts=parts)
    return _checked(AtariGames(envs, game, copies, seed, training))


def make_in_turns(
    game: str, copies: int, seed: int, training: bool, *, sticky: float = 0.0, parts: int = 0
) -> list[AtariGames]:
    """Make the same copies in two groups, each divided among all processes; in one group without processes."""
    parts = parts or default_parts(copies)
    if parts < 2:
        return [make(game, copies, seed, training, sticky=sticky)]
    SUITE.check([game])
    check_rom(game, GAMES[game][0])
    groups, first = [], 0
    for group in shared_envs(GAMES[game][0], copies, sticky, parts, turns=2):
        groups.append(_checked(AtariGames(group, game, len(group.records), seed, training, first)))
        first += len(group.records)
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
