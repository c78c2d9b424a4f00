"""Where a fleet plays: the games that it learns from, and those of its evaluations, which stay open between them.

How every game begins follows from (seed, what it is played for, game at hand, game, number).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kenyon.random import Purpose, key
from kenyon.rl.crowd import Crowd
from kenyon.rl.environment import Games, Suite

SEEDS = 0x7FFFFFFF  # games take seeds of 31 bits


class Venue:
    def __init__(self, suite: Suite, games: Sequence[str], seeds: Sequence[int], device: torch.device) -> None:
        self.suite, self.games, self.seeds, self.device = suite, tuple(games), tuple(seeds), device
        self.crowd: Crowd | None = None  # the games being learned, whose state is saved where they can tell
        self.halls: list[list[Games]] = [[] for _ in seeds]  # of each run: the games that evaluations play

    def play(self, phase: int, purpose: Purpose, number: int, copies: int, *, threads: bool, turns: bool) -> Crowd:
        """The game at hand for every run, at its beginning. `number` tells plays at different times apart; `turns`
        has the copies in groups, where the suite can do so.
        """
        begins = [self._seed(seed, purpose, phase, phase, number) for seed in self.seeds]
        if self.crowd is None:
            grouped = self.suite.make_in_turns if turns else None
            make = grouped or (lambda *made: [self.suite.make(*made)])
            self.crowd = Crowd(
                [make(self.games[phase], copies, one, True) for one in begins], self.device, threads=threads
            )
        else:  # those that are open
            self.crowd.reseed(begins)
        self.crowd.begin()
        return self.crowd

    def leave(self) -> None:
        """Be done with the game at hand."""
        if self.crowd is not None:
            self.crowd.close()
            self.crowd = None

    def test(self, phase: int, number: int, episodes: int) -> list[list[Games]]:
        """All games met so far, for every run, as evaluation plays them."""
        for seed, hall in zip(self.seeds, self.halls, strict=True):
            for game in range(phase + 1):
                begins = self._seed(seed, Purpose.EVALUATION, phase, game, number)
                if game < len(hall):
                    hall[game].reseed(begins)  # making games may take long
                else:
                    hall.append(self.suite.make(self.games[game], episodes, begins, False))
        return self.halls

    def close(self) -> None:
        self.leave()
        for hall in self.halls:
            while hall:
                hall.pop().close()

    @staticmethod
    def _seed(seed: int, purpose: Purpose, phase: int, game: int, number: int) -> int:
        return key(seed, purpose, phase, game, number) & SEEDS
