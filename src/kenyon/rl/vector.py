"""The games of a fleet, played side by side: a run waits for its own games only.

While some runs' games are stepped by threads, the network looks at what the others show; a run that is alone may have
its copies in groups that take turns. Runs that the network computes together wait for each other anyway, and theirs
are stepped one after another.

Where a fleet plays: the games that it learns from, and those of its evaluations, which stay open between them.

How every game begins follows from (seed, what it is played for, game at hand, game, number).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.random import Purpose, key
from kenyon.rl.environment import Games, Moment, Suite
from kenyon.training.device import Runs

ALL = slice(None)


class Crowd:
    """Every run has one or several games (or groups of copies of one), whose copies lie one behind another."""

    def __init__(self, games: Sequence[Sequence[Games]], device: torch.device, *, threads: bool) -> None:
        self.games = [list(some) for some in games]
        ends = [0, *accumulate(game.count for game in self.games[0])]
        self.places = [slice(*pair) for pair in pairwise(ends)]
        shape = (len(games), ends[-1], *self.games[0][0].shape)
        # What is shown, (R, N, C, H, W): as the games give it, and where the network sees it.
        self.pixels = torch.zeros(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.seen = self.pixels.to(device, non_blocking=True)  # on a CPU they are one
        self.pool = ThreadPoolExecutor(sum(map(len, games)), "kenyon-games") if threads else None
        self.moments: dict[tuple[int, int], Moment | Future[Moment]] = {}

    def begin(self) -> None:
        for run, some in enumerate(self.games):
            for place, game in zip(self.places, some, strict=True):
                self.pixels[run, place] = torch.from_numpy(game.reset())
        self.show(slice(None))

    def reseed(self, seeds: Sequence[int]) -> None:
        """Where every run has one game: begin it next time as if it had been made with this seed."""
        for some, seed in zip(self.games, seeds, strict=True):
            for game in some:
                game.reseed(seed)

    def show(self, run: Runs, place: slice = ALL) -> None:
        if self.seen is not self.pixels:
            self.seen[run, place].copy_(self.pixels[run, place], non_blocking=True)

    def play(
        self, run: Runs, actions: Tensor, resting: Collection[tuple[int, int]] = (), only: int | None = None
    ) -> None:
        """Step the games of a run, or of all, or `only` one of each, except some (run, game), with actions (N,) or
        (R, N) of them.
        """
        chosen = actions.cpu().numpy().astype(np.int64)
        for r in self._runs(run):
            mine = chosen[r] if isinstance(run, slice) else chosen
            for g in self._games(only):
                if (r, g) in resting:
                    continue
                step, game = mine if only is not None else mine[self.places[g]], self.games[r][g]
                self.moments[r, g] = self.pool.submit(game.step, step) if self.pool else game.step(step)

    def arrive(self, run: Runs, only: int | None = None) -> Iterator[tuple[int, int, Moment]]:
        """What the last step gave, (run, game, moment), once it is there; then all of it is shown."""
        for r in self._runs(run):
            for g in self._games(only):
                if (found := self.moments.pop((r, g), None)) is not None:
                    moment = found.result() if isinstance(found, Future) else found
                    self.pixels[r, self.places[g]] = torch.from_numpy(moment.observations)
                    yield r, g, moment
        self.show(run, ALL if only is None else self.places[only])

    def save(self) -> dict[str, Tensor]:
        """Everything that decides what comes next, runs first; nothing where the games cannot tell."""
        saved = [some[0].save() for some in self.games]
        if len(self.places) > 1 or any(one is None for one in saved):
            return {}
        names = saved[0] or {}
        stacked = {name: np.stack([one[name] for one in saved if one]) for name in names}
        return {f"games.{name}": torch.from_numpy(_signed(array)) for name, array in stacked.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        for run, (game,) in enumerate(self.games):
            now = game.save() or {}
            mine = {name: saved[f"games.{name}"][run].numpy().view(array.dtype) for name, array in now.items()}
            self.pixels[run] = torch.from_numpy(game.load(mine))
        self.show(slice(None))

    def leave(self) -> None:
        """End what is under way; the games stay open."""
        for moment in self.moments.values():
            if isinstance(moment, Future):
                moment.exception()
        if self.pool:
            self.pool.shutdown()

    def close(self) -> None:
        self.leave()
        for some in self.games:
            for game in some:
                game.close()

    def _games(self, only: int | None) -> Sequence[int]:
        return range(len(self.places)) if only is None else (only,)

    def _runs(self, run: Runs) -> Sequence[int]:
        return range(len(self.games))[run] if isinstance(run, slice) else (run,)


def _signed(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """The same bits; PyTorch can do little with unsigned words."""
    return array.view(f"i{array.itemsize}") if array.dtype.kind == "u" and array.itemsize > 1 else array


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
