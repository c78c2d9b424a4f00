"""Small games in NumPy for the tests: whole states that can be saved, and scores that are known.

Randomness is a function of (seed, how many steps were made), so a game's state is a few arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kenyon.rl.environment import Moment, Pixels, Suite

SIDE = 6
CUES, TRIALS = 6, 5


class Toy:
    shape = (1, SIDE, SIDE)
    actions = 3

    def __init__(self, count: int, seed: int, *, saves: bool = True) -> None:
        self.count, self.seed, self.saves = count, seed, saves
        self.state: dict[str, np.ndarray[Any, Any]] = {"made": np.zeros((), np.int64), "seed": np.array(seed)}
        self.closed = False

    def random(self) -> np.random.Generator:
        self.state["made"] += 1
        return np.random.default_rng([int(self.state["seed"]), int(self.state["made"])])

    def reseed(self, seed: int) -> None:
        self.state["seed"] = np.array(seed)

    def reset(self) -> Pixels:
        self.state["made"] *= 0
        self.state |= {"score": np.zeros(self.count), "time": np.zeros(self.count, np.int64)}
        self.begin(np.ones(self.count, bool), self.random())
        return self.picture()

    def step(self, actions: np.ndarray[Any, Any]) -> Moment:
        assert actions.shape == (self.count,) and actions.min() >= 0 and actions.max() < self.actions
        rewards, ended = self.outcome(actions)
        self.state["score"] += rewards
        self.state["time"] += 1
        scores = [(int(i), float(self.state["score"][i])) for i in np.flatnonzero(ended)]
        self.state["score"][ended] = 0
        self.state["time"][ended] = 0
        self.begin(ended, self.random())
        return Moment(self.picture(), rewards.astype(np.float32), ended, scores)

    def save(self) -> dict[str, np.ndarray[Any, Any]] | None:
        return {name: value.copy() for name, value in self.state.items()} if self.saves else None

    def load(self, saved: Mapping[str, np.ndarray[Any, Any]]) -> Pixels:
        self.state = {name: np.array(value) for name, value in saved.items()}
        return self.picture()

    def close(self) -> None:
        self.closed = True

    def begin(self, which: np.ndarray[Any, Any], random: np.random.Generator) -> None:
        raise NotImplementedError

    def outcome(self, actions: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        raise NotImplementedError

    def picture(self) -> Pixels:
        raise NotImplementedError


class Catch(Toy):
    """A ball falls, and is caught (1) or not (0). Moving towards it always catches it."""

    def begin(self, which: np.ndarray[Any, Any], random: np.random.Generator) -> None:
        ball, paddle = (random.integers(0, SIDE, self.count) for _ in range(2))
        for name, new in (("ball", ball), ("paddle", paddle)):
            self.state[name] = np.where(which, new, self.state.get(name, new))

    def outcome(self, actions: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        self.state["paddle"] = np.clip(self.state["paddle"] + actions - 1, 0, SIDE - 1)
        ended = self.state["time"] == SIDE - 2
        return (ended & (self.state["paddle"] == self.state["ball"])).astype(float), ended

    def picture(self) -> Pixels:
        pixels = np.zeros((self.count, 1, SIDE, SIDE), np.uint8)
        each = np.arange(self.count)
        pixels[each, 0, self.state["time"], self.state["ball"]] = 255
        pixels[each, 0, SIDE - 1, self.state["paddle"]] = 255
        return pixels


class Cues(Toy):
    """Pictures, each with one right action; the two games of this kind group the same pictures differently."""

    actions = 3

    def __init__(self, count: int, seed: int, right: tuple[int, ...], *, saves: bool = True) -> None:
        super().__init__(count, seed, saves=saves)
        self.right = np.array(right)
        self.pictures = np.random.default_rng(7).integers(0, 2, (CUES, 1, SIDE, SIDE)).astype(np.uint8) * 255

    def begin(self, which: np.ndarray[Any, Any], random: np.random.Generator) -> None:
        self.state["cue"] = random.integers(0, CUES, self.count)  # a new one every step

    def outcome(self, actions: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return (self.right[self.state["cue"]] == actions).astype(float), self.state["time"] == TRIALS - 1

    def picture(self) -> Pixels:
        return self.pictures[self.state["cue"]]


RIGHT = {"sort": (0, 0, 1, 1, 2, 2), "resort": (0, 1, 2, 0, 1, 2)}


def make(game: str, count: int, seed: int, training: bool) -> Toy:
    return Catch(count, seed) if game == "catch" else Cues(count, seed, RIGHT[game])


TOYS = Suite("toys", "Small games for tests.", {"catch": 3, "sort": 3, "resort": 3}, (1, SIDE, SIDE), make)
