"""rl-mini: five small games on a board of 6 x 6, learned in seconds and forgotten as quickly.

An episode is four rounds of at most eight steps. In each round an object appears, and the round is won or lost; a
won round gives 1, so that scores go from 0 to 4. Three games look alike and require different actions (catch, dodge,
gap); two look alike and require opposite ones (reach, flee). Every round can be won, wherever the player is.

Observations are 2 x 6 x 6: the object in the first plane, the player in the second. All randomness is a hash of
(seed, game, copy, episode, round): copies are independent, and the saved state is plain positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kenyon.errors import ConfigError
from kenyon.random import key
from kenyon.rl.environment import Moment, Pixels, Suite, register

SIDE = 6
LAST = SIDE - 1

Places = npt.NDArray[np.int64]  # (N, 2) row and column
Whole = npt.NDArray[np.int64]  # (N,)
Uniform = npt.NDArray[np.float64]  # (N,) in [0, 1)
Flags = npt.NDArray[np.bool_]

STAY, UP, DOWN, LEFT, RIGHT = (0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)

ROWS, COLUMNS = np.arange(SIDE)[:, None], np.arange(SIDE)[None, :]  # (6, 1) and (1, 6)


@dataclass(frozen=True)
class Rules:
    """The rules of one game, as functions of the positions of object and player in N copies."""

    about: str
    moves: tuple[tuple[int, int], ...]  # of the player, action by action
    falls: bool  # the object falls one row per step, and the player stays in the last row
    place: Callable[[Places, Uniform, Uniform], tuple[Places, Whole]]  # (player, two draws) -> object, steps left
    move: Callable[[Places, Places, Whole], Places]  # (object, player, steps left) -> object
    judge: Callable[[Places, Places, Whole], tuple[Flags, Flags]]  # (object, player, steps left) -> over, won
    paint: Callable[[Places], Flags]  # object -> its cells, (N, 6, 6)
    random: float  # mean score of random play, of at most 4; from 400,000 episodes, standard error 0.0015 at most


def between(low: Whole, high: Whole, draw: Uniform) -> Whole:
    """Return integers from low to high, both included."""
    return low + (draw * (high - low + 1)).astype(np.int64)


# Objects that fall from row 0 or 1, with rounds that end in the last row.


def _fallen(thing: Places, player: Places, left: Whole) -> Places:
    return thing + np.array(DOWN)


def _height(draw: Uniform) -> tuple[Whole, Whole]:
    """Return row 0 or 1, and the number of steps to the last row."""
    row = (draw * 2).astype(np.int64)
    return row, LAST - row


def _within_reach(player: Places, first: Uniform, second: Uniform) -> tuple[Places, Whole]:
    row, left = _height(first)
    column = player[:, 1]
    aim = between(np.maximum(column - left, 0), np.minimum(column + left, LAST), second)
    return np.stack([row, aim], axis=1), left


def _overhead(player: Places, first: Uniform, second: Uniform) -> tuple[Places, Whole]:
    row, left = _height(first)
    return np.stack([row, player[:, 1]], axis=1), left


def _aligned(thing: Places, player: Places, left: Whole) -> tuple[Flags, Flags]:
    over = left == 0
    return over, over & (thing[:, 1] == player[:, 1])


HALF = 2  # of the falling beam: it is five columns wide


def _clear(thing: Places, player: Places, left: Whole) -> tuple[Flags, Flags]:
    over = left == 0
    return over, over & (np.abs(thing[:, 1] - player[:, 1]) > HALF)


# Objects on the board with the player.

NEAR, REACH_STEPS = 2, 8  # the goal is at most NEAR rows and columns away
FLEE_STEPS = 7


def _near(player: Places, first: Uniform, second: Uniform) -> tuple[Places, Whole]:
    low, high = np.maximum(player - NEAR, 0), np.minimum(player + NEAR, LAST)
    thing = np.stack([between(low[:, i], high[:, i], draw) for i, draw in enumerate((first, second))], axis=1)
    on_player = (thing == player).all(axis=1)
    thing[:, 1] += np.where(on_player, np.where(player[:, 1] < LAST, 1, -1), 0)
    return thing, np.full(len(player), REACH_STEPS)


def _standing(thing: Places, player: Places, left: Whole) -> Places:
    return thing


def _met(thing: Places, player: Places, left: Whole) -> tuple[Flags, Flags]:
    won = (thing == player).all(axis=1)
    return won | (left == 0), won


def _three_away(player: Places, first: Uniform, second: Uniform) -> tuple[Places, Whole]:
    """Place the object three steps from the player, towards the middle: 3 and 0, 2 and 1, 1 and 2, or 0 and 3."""
    down = (first * 4).astype(np.int64)
    inwards = np.where(player <= LAST // 2, 1, -1)
    return player + inwards * np.stack([down, 3 - down], axis=1), np.full(len(player), FLEE_STEPS)


def _hunting(thing: Places, player: Places, left: Whole) -> Places:
    """Move one step towards the player along the longer axis, rows first; rest in every third step."""
    gap = player - thing
    by_row = np.abs(gap[:, 0]) >= np.abs(gap[:, 1])
    step = np.sign(gap) * np.stack([by_row, ~by_row], axis=1)
    return thing + step * (left % 3 != 0)[:, None]


def _escaped(thing: Places, player: Places, left: Whole) -> tuple[Flags, Flags]:
    caught = (thing == player).all(axis=1)
    over = caught | (left == 0)
    return over, over & ~caught


def _row(thing: Places) -> tuple[Flags, npt.NDArray[np.int64]]:
    """Return the mask of the object's row (N, 6, 1), and the distance of each column from it (N, 1, 6)."""
    return thing[:, 0, None, None] == ROWS, np.abs(thing[:, 1, None, None] - COLUMNS)


def _block(thing: Places) -> Flags:
    row, off = _row(thing)
    return row & (off == 0)


def _beam(thing: Places) -> Flags:
    row, off = _row(thing)
    return row & (off <= HALF)


def _wall(thing: Places) -> Flags:
    row, off = _row(thing)
    return row & (off != 0)


RULES = {
    "catch": Rules(
        "stand under the falling block",
        moves=(LEFT, STAY, RIGHT),
        falls=True,
        place=_within_reach,
        move=_fallen,
        judge=_aligned,
        paint=_block,
        random=0.689,
    ),
    "reach": Rules(
        "walk to the block",
        moves=(UP, DOWN, LEFT, RIGHT),
        falls=False,
        place=_near,
        move=_standing,
        judge=_met,
        paint=_block,
        random=1.169,
    ),
    "dodge": Rules(
        "leave the place under a falling beam",
        moves=(LEFT, RIGHT),
        falls=True,
        place=_overhead,
        move=_fallen,
        judge=_clear,
        paint=_beam,
        random=0.542,
    ),
    "flee": Rules(
        "run from the block that follows",
        moves=(STAY, UP, DOWN, LEFT, RIGHT),
        falls=False,
        place=_three_away,
        move=_hunting,
        judge=_escaped,
        paint=_block,
        random=0.880,
    ),
    "gap": Rules(
        "stand under the hole of a falling wall",
        moves=(LEFT, STAY, RIGHT),
        falls=True,
        place=_within_reach,
        move=_fallen,
        judge=_aligned,
        paint=_wall,
        random=0.688,
    ),
}

ROUNDS = 4
BEST = float(ROUNDS)  # the best score of every game
SHAPE = (2, SIDE, SIDE)
DRAWS = 4  # per round: two place the object and, in the first round, two the player

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
        self.thing = rules.move(self.thing, self.player, self.left)
        over, won = rules.judge(self.thing, self.player, self.left)
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
        """Begin a round in copies where one is `over`; where an episode has `ended`, place the player too."""
        first, second, *place = self._draws()
        drawn = (np.stack(place, axis=1) * SIDE).astype(np.int64)
        if self.rules.falls:
            drawn[:, 0] = LAST
        self.player = np.where(ended[:, None], drawn, self.player)
        thing, left = self.rules.place(self.player, first, second)
        self.thing = np.where(over[:, None], thing, self.thing)
        self.left = np.where(over, left, self.left)

    def _draws(self) -> npt.NDArray[np.float64]:
        """Return uniform numbers for the round of every copy, (DRAWS, N): splitmix64, one stream per copy."""
        count = (self.episode * ROUNDS + self.round).astype(np.uint64) * np.uint64(DRAWS)
        count = count + np.arange(1, DRAWS + 1, dtype=np.uint64)[:, None]
        z = self.keys + count * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

    def _observed(self) -> Pixels:
        pixels = np.zeros((self.count, *SHAPE), dtype=np.uint8)
        pixels[:, 0] = self.rules.paint(self.thing) * np.uint8(255)
        pixels[np.arange(self.count), 1, self.player[:, 0], self.player[:, 1]] = 255
        return pixels

    def save(self) -> dict[str, npt.NDArray[np.generic]]:
        return {name: getattr(self, name).copy() for name in STATE}

    def load(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> Pixels:
        for name in STATE:
            array, own = saved.get(name), getattr(self, name)
            if array is None or array.shape != own.shape:
                problem = "is missing" if array is None else f"has the shape {array.shape}"
                raise ConfigError(
                    f"These are not the saved positions of {self.count} copies of a game of rl-mini: "
                    f"'{name}' {problem}. Load into as many copies as were saved."
                )
        for name in STATE:
            setattr(self, name, np.array(saved[name], dtype=getattr(self, name).dtype))
        return self._observed()

    def close(self) -> None:
        """There is nothing to close."""


def make(game: str, copies: int, seed: int, training: bool) -> MiniGames:
    """Make copies of a game. Training and evaluation play alike: there are no lives and nothing to clip."""
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
