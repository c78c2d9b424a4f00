"""rl-mini: five tiny games that are learned in seconds and forgotten as quickly.

Observations are 2 x 6 x 6: the thing in the first plane, the player in the second. An episode is four rounds of at
most eight steps; a won round gives 1, so scores go from 0 to 4. Everything random is a hash of (seed, game, copy,
episode, round): copies know nothing of each other, and what is saved is plain positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError
from kenyon.random import key
from kenyon.rl.environment import Moment, Pixels, Suite, register
from kenyon.rl.mini_rules import LAST, RULES, SIDE

ROUNDS = 4
BEST = float(ROUNDS)  # of every game: no round is lost before it begins
SHAPE = (2, SIDE, SIDE)
DRAWS = 4  # in a round: two place the thing and, in the first one, two the player

STATE = ("keys", "episode", "round", "left", "score", "player", "thing")


class MiniGames:
    """Copies of one game, stepped together in NumPy."""

    shape = SHAPE

    def __init__(self, game: str, copies: int, seed: int) -> None:
        self.game, self.rules = game, RULES[game]
        self.count, self.actions = copies, len(self.rules.moves)
        self._moves = np.array(self.rules.moves)
        self.reseed(seed)
        self.reset()

    def reseed(self, seed: int) -> None:
        keys = [key(seed, crc32(self.game.encode()), copy) for copy in range(self.count)]
        self.keys = np.array(keys, dtype=np.uint64)

    def reset(self) -> Pixels:
        N = self.count
        self.episode, self.round, self.left, self.score = (np.zeros(N, dtype=np.int64) for _ in range(4))
        self.player, self.thing = (np.zeros((N, 2), dtype=np.int64) for _ in range(2))
        self._begin(np.ones(N, dtype=bool), np.ones(N, dtype=bool))
        return self._observed()

    def step(self, actions: npt.NDArray[np.int64]) -> Moment:
        rules = self.rules
        self.player = np.clip(self.player + self._moves[actions], 0, LAST)
        self.left = self.left - 1
        self.thing = rules.moved(self.thing, self.player, self.left)
        over, won = rules.judged(self.thing, self.player, self.left)
        self.score = self.score + won
        self.round = self.round + over
        ended = self.round == ROUNDS
        scores = [(int(i), float(self.score[i])) for i in np.flatnonzero(ended)]
        self.episode = self.episode + ended
        self.round, self.score = np.where(ended, 0, self.round), np.where(ended, 0, self.score)
        if over.any():
            self._begin(over, ended)
        return Moment(self._observed(), won.astype(np.float32), ended, scores)

    def _begin(self, over: npt.NDArray[np.bool_], ended: npt.NDArray[np.bool_]) -> None:
        """A new round where `over`, with the player in a new place where an episode has `ended`."""
        first, second, *place = self._draws()
        drawn = (np.stack(place, axis=1) * SIDE).astype(np.int64)
        if self.rules.falls:
            drawn[:, 0] = LAST
        self.player = np.where(ended[:, None], drawn, self.player)
        thing, left = self.rules.placed(self.player, first, second)
        self.thing = np.where(over[:, None], thing, self.thing)
        self.left = np.where(over, left, self.left)

    def _draws(self) -> npt.NDArray[np.float64]:
        """For the round of every copy, (DRAWS, N) in [0, 1): splitmix64, one stream a copy."""
        count = (self.episode * ROUNDS + self.round).astype(np.uint64) * np.uint64(DRAWS)
        count = count + np.arange(1, DRAWS + 1, dtype=np.uint64)[:, None]
        z = self.keys + count * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

    def _observed(self) -> Pixels:
        seen = np.zeros((self.count, *SHAPE), dtype=np.uint8)
        seen[:, 0] = self.rules.painted(self.thing) * np.uint8(255)
        seen[np.arange(self.count), 1, self.player[:, 0], self.player[:, 1]] = 255
        return seen

    def save(self) -> dict[str, npt.NDArray[np.generic]]:
        return {name: getattr(self, name).copy() for name in STATE}

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        for name in STATE:
            there, here = saved.get(name), getattr(self, name)
            if there is None or there.shape != here.shape:
                found = "is missing" if there is None else f"has the shape {there.shape}"
                raise ConfigError(
                    f"These are not the saved positions of {self.count} copies of a game of rl-mini: "
                    f"'{name}' {found}. Load into as many copies as were saved."
                )
        for name in STATE:
            setattr(self, name, np.array(saved[name], dtype=getattr(self, name).dtype))
        return self._observed()

    def close(self) -> None:
        """There is nothing to close."""


def make(game: str, copies: int, seed: int, training: bool) -> MiniGames:
    """Training and evaluation play alike: there are no lives and nothing to clip."""
    SUITE.check([game])
    return MiniGames(game, copies, seed)


SUITE = register(
    Suite(
        name="rl-mini",
        about="five games on a board of 6 x 6, learned in seconds",
        actions={name: len(rules.moves) for name, rules in RULES.items()},
        shape=SHAPE,
        make=make,
    )
)
