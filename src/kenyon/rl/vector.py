"""Vector environments: the games of all runs, and the pool of those that training and evaluation play.

A run waits only for its own games. While threads step the games of some runs, the network computes the actions of
others; the copies of a single run may be in groups that are stepped alternately. Runs that the network computes
together wait for each other anyway, and their games are stepped one after another.

The seed of a game is a function of (run's seed, purpose, current game, game, number).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kenyon.random import Purpose, key
from kenyon.rl.environment import Games, Moment, Suite
from kenyon.training.device import Runs

ALL = slice(None)
SEEDS = 0x7FFFFFFF  # games take seeds of 31 bits


class VectorEnvs:
    """The games of R runs: of each run one or several games, or groups of copies of one, joined along the copies."""

    def __init__(self, games: Sequence[Sequence[Games]], device: torch.device, *, threads: bool) -> None:
        """`games`: those of each run. `threads`: step them in threads, each game in one of its own."""
        self.games = [list(of_run) for of_run in games]
        ends = [0, *accumulate(game.count for game in self.games[0])]
        self.copies = [slice(*pair) for pair in pairwise(ends)]  # of each game, along the axis of copies
        shape = (len(games), ends[-1], *self.games[0][0].shape)
        # Observations (R, N, C, H, W), as the games give them and on the device; on a CPU both are one tensor.
        self.host = torch.zeros(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.observations = self.host.to(device, non_blocking=True)
        self.pool = ThreadPoolExecutor(sum(map(len, games)), "kenyon-games") if threads else None
        self.pending: dict[tuple[int, int], Callable[[], Moment]] = {}  # (run, game) -> the result of its last step

    def reset(self) -> None:
        """Begin new episodes in all games."""
        for run, games in enumerate(self.games):
            for copies, game in zip(self.copies, games, strict=True):
                self.host[run, copies] = torch.from_numpy(game.reset())
        self._upload(ALL)

    def reseed(self, seeds: Sequence[int]) -> None:
        """Let the next `reset` play as if the games of each run had been made with its seed."""
        for games, seed in zip(self.games, seeds, strict=True):
            for game in games:
                game.reseed(seed)

    def step(
        self, run: Runs, actions: Tensor, skip: Collection[tuple[int, int]] = (), only: int | None = None
    ) -> None:
        """Start a step of the games of one run or of all runs, or of one game of each (`only`), except for the
        (run, game) pairs in `skip`. `actions`: (N,) or (R, N), of these games.
        """
        chosen = actions.cpu().numpy().astype(np.int64)
        for place, r in enumerate(self._runs(run)):
            of_run = chosen.reshape(-1, chosen.shape[-1])[place]
            for g in self._games(only):
                if (r, g) not in skip:
                    self._start(r, g, of_run if only is not None else of_run[self.copies[g]])

    def _start(self, run: int, number: int, actions: npt.NDArray[np.int64]) -> None:
        step = self.games[run][number].step
        if self.pool is not None:
            self.pending[run, number] = self.pool.submit(step, actions).result
        else:
            moment = step(actions)
            self.pending[run, number] = lambda: moment

    def results(self, run: Runs, only: int | None = None) -> Iterator[tuple[int, int, Moment]]:
        """Wait for the last step and yield (run, game, moment) of each game; then copy observations to the device."""
        for r in self._runs(run):
            for g in self._games(only):
                if (result := self.pending.pop((r, g), None)) is not None:
                    moment = result()
                    self.host[r, self.copies[g]] = torch.from_numpy(moment.observations)
                    yield r, g, moment
        self._upload(run, ALL if only is None else self.copies[only])

    def save(self) -> dict[str, Tensor]:
        """Return the state of all games with a leading run axis; empty if they cannot be saved."""
        saved = [games[0].save() for games in self.games]
        if len(self.copies) > 1 or any(state is None for state in saved):
            return {}
        names = saved[0] or {}
        stacked = {name: np.stack([state[name] for state in saved if state]) for name in names}
        return {f"games.{name}": torch.from_numpy(_signed(array)) for name, array in stacked.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Restore a state from `save`."""
        for run, (game,) in enumerate(self.games):
            present = game.save() or {}
            state = {name: saved[f"games.{name}"][run].numpy().view(array.dtype) for name, array in present.items()}
            self.host[run] = torch.from_numpy(game.load(state))
        self._upload(ALL)

    def join(self) -> None:
        """Wait for steps that have been started, and end the threads; the games stay open."""
        if self.pool:
            self.pool.shutdown()

    def close(self) -> None:
        self.join()
        for games in self.games:
            for game in games:
                game.close()

    def _upload(self, run: Runs, copies: slice = ALL) -> None:
        if self.observations is not self.host:
            self.observations[run, copies].copy_(self.host[run, copies], non_blocking=True)

    def _games(self, only: int | None) -> Sequence[int]:
        return range(len(self.copies)) if only is None else (only,)

    def _runs(self, run: Runs) -> Sequence[int]:
        return range(len(self.games))[run] if isinstance(run, slice) else (run,)


def _signed(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the same bits as signed integers: PyTorch has few operations on unsigned words."""
    return array.view(f"i{array.itemsize}") if array.dtype.kind == "u" and array.itemsize > 1 else array


class EnvPool:
    """The environments of R runs: those of the current game, and those of evaluations, which stay open in between."""

    def __init__(self, suite: Suite, games: Sequence[str], seeds: Sequence[int], device: torch.device) -> None:
        self.suite, self.games, self.seeds, self.device = suite, tuple(games), tuple(seeds), device
        self.training: VectorEnvs | None = None  # its state is saved if the games can be saved
        self.evaluation: list[list[Games]] = [[] for _ in seeds]  # of each run, in the order of learning

    def start(
        self, phase: int, purpose: Purpose, number: int, copies: int, *, threads: bool, turns: bool
    ) -> VectorEnvs:
        """Begin the current game in every run. `number` separates plays at different times; `turns` has the copies in
        groups, if the suite supports it.
        """
        seeds = [self._seed(seed, purpose, phase, phase, number) for seed in self.seeds]
        if self.training is None:
            make = (self.suite.make_in_turns if turns else None) or (lambda *made: [self.suite.make(*made)])
            games = [make(self.games[phase], copies, seed, True) for seed in seeds]
            self.training = VectorEnvs(games, self.device, threads=threads)
        else:
            self.training.reseed(seeds)
        self.training.reset()
        return self.training

    def leave(self) -> None:
        """Close the current game."""
        if self.training is not None:
            self.training.close()
            self.training = None

    def eval_envs(self, phase: int, number: int, episodes: int) -> list[list[Games]]:
        """Return all games learned so far, for every run, as evaluation plays them."""
        for run_seed, games in zip(self.seeds, self.evaluation, strict=True):
            for game in range(phase + 1):
                seed = self._seed(run_seed, Purpose.EVALUATION, phase, game, number)
                if game < len(games):
                    games[game].reseed(seed)  # making games may take long
                else:
                    games.append(self.suite.make(self.games[game], episodes, seed, False))
        return self.evaluation

    def close(self) -> None:
        self.leave()
        for games in self.evaluation:
            while games:
                games.pop().close()

    @staticmethod
    def _seed(seed: int, purpose: Purpose, phase: int, game: int, number: int) -> int:
        return key(seed, purpose, phase, game, number) & SEEDS
