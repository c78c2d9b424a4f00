"""Predicted cost of fleets, learned from those that have finished, and simulated schedules.

The logarithm of the seconds is a linear model: of the logarithms of epochs (for games: steps), runs, learners and
width, with one more coefficient for each benchmark, method and kind of device. All coefficients have normal priors,
so that an unknown one takes its value from similar ones: a new method on a known benchmark costs about what methods
cost there.

A schedule is a simulation of workers that each take the next fleet of a queue. It predicts the time left of a sweep,
the effect of more machines, and the cost of workers that die.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kenyon.experiments.config import Config
from kenyon.experiments.results import ResultBase
from kenyon.sweep.leases import EXPIRY
from kenyon.training.checkpoint import SAVE_EVERY

Array = NDArray[np.float64]

# Prior mean and standard deviation. Epochs cost their number. Runs and learners share a device: by `kenyon bench`, 20
# runs of CAF on CIFAR-100 take 20^0.68 times as long as one on an H200, 4 take 4^0.77 times on two cores. A benchmark
# may be a thousand times another.
SLOPES = {"epochs": (1.0, 0.1), "runs": (0.7, 0.3), "learners": (0.8, 0.3), "width": (0.5, 0.3)}
START = (math.log(0.05), 2.0)
KINDS = {"benchmark": 2.5, "method": 0.7, "device": 2.0}
NOISE = 0.3  # prior standard deviation of the logarithm
LEAST = 0.03  # lower bound of the fitted noise


@dataclass(frozen=True)
class Work:
    """The properties that decide the cost of a fleet."""

    benchmark: str
    method: str
    runs: int
    epochs: float  # of one run, all tasks and stages; of games, thousands of steps
    learners: int
    width: int

    @classmethod
    def of(cls, config: Config, runs: int) -> Work:
        shape = config.architecture
        return cls(config.benchmark, config.method, runs, config.length, shape.learners, shape.width)


@dataclass(frozen=True)
class Seen:
    """A finished fleet."""

    work: Work
    device: str
    seconds: float


def seen_in(result: ResultBase) -> list[Seen]:
    """Return the fleets of a result. Results of several points that trained together have the same."""
    config = Config.from_dict(result.config)
    found = []
    for fleet in result.fleets:
        runs = fleet.together or len(fleet.seeds)
        if fleet.seconds > 0 and fleet.seeds and not fleet.sharing:
            seconds = fleet.seconds * runs / len(fleet.seeds)
            found.append(Seen(Work.of(config, runs), fleet.device, seconds))
    return found


class Costs:
    """Predicted cost of some fleets on a device, from finished ones."""

    def __init__(self, works: Sequence[Work], seen: Sequence[Seen] = (), device: str | None = None) -> None:
        """`device`: by default that of most finished fleets."""
        devices = [one.device for one in seen] or [""]
        device = max(set(devices), key=devices.count) if device is None else device
        pairs = [*((one.work, one.device) for one in seen), *((work, device) for work in works)]
        columns = sorted({(kind, name) for work, on in pairs for kind, name in _kinds(work, on)})
        prior = np.array([START, *SLOPES.values(), *((0.0, KINDS[kind]) for kind, _ in columns)])
        rows = np.array([_row(work, on, columns) for work, on in pairs]).reshape(len(pairs), len(prior))
        X, self.rows = rows[: len(seen)], rows[len(seen) :]
        y = np.log([max(one.seconds, 1e-3) for one in seen]) - X @ prior[:, 0]
        self.noise = NOISE
        for _ in range(5):  # the noise is that of the residuals, together with four fleets' worth of the prior
            self.covariance = np.linalg.inv(np.diag(prior[:, 1] ** -2) + X.T @ X / self.noise**2)
            change = self.covariance @ (X.T @ y) / self.noise**2
            left = y - X @ change
            self.noise = max(LEAST, math.sqrt((left @ left + 4 * NOISE**2) / (len(seen) + 4)))
        self.mean = prior[:, 0] + change

    @property
    def seconds(self) -> Array:
        """Median time of each fleet (F,)."""
        return np.asarray(np.exp(self.rows @ self.mean))

    def draws(self, count: int, seed: int = 0) -> Array:
        """Return samples of the times (count, F). Coefficients are common to all fleets of a sample."""
        random = np.random.default_rng(seed)
        known = random.multivariate_normal(self.mean, self.covariance, count, method="cholesky")
        return np.asarray(np.exp(known @ self.rows.T + self.noise * random.standard_normal((count, len(self.rows)))))


def _kinds(work: Work, device: str) -> list[tuple[str, str]]:
    return list(zip(KINDS, (work.benchmark, work.method, device), strict=True))


def _row(work: Work, device: str, columns: Sequence[tuple[str, str]]) -> list[float]:
    """Return 1, the logarithms, and a 1 in the columns of the fleet's benchmark, method and device."""
    numbers = [math.log(max(1, getattr(work, name))) for name in SLOPES]
    own = set(_kinds(work, device))
    return [1.0, *numbers, *(float(column in own) for column in columns)]


@dataclass(frozen=True)
class Dying:
    """Workers that die at random and are replaced."""

    every: float  # seconds that a worker lives, on average
    saved: float = SAVE_EVERY  # seconds between states: half of it is lost
    noticed: float = EXPIRY  # until a fleet's lease expires
    replaced: float = 0.0  # until there is another worker


@dataclass(frozen=True)
class Outlook:
    seconds: float  # until the last fleet has finished
    busy: float  # share of the workers' time spent on work that was not lost
    deaths: int
    again: float  # seconds of training that were repeated


def longest_first(seconds: Sequence[float]) -> list[int]:
    """Return the order of a queue: the longest fleets begin first, so that none is left alone at the end."""
    return sorted(range(len(seconds)), key=lambda number: -seconds[number])


def simulate(
    seconds: Sequence[float], workers: int, dying: Dying | None = None, *, start: float = 0.0, seed: int = 0
) -> Outlook:
    """Simulate workers on fleets of these durations, in the order of the queue. `start`: seconds before a worker's
    first fleet.
    """
    random = np.random.default_rng(seed)
    ready = [start] * min(workers, max(1, len(seconds)))  # when each worker is free: a heap
    waiting = list(enumerate(map(float, seconds)))  # place in the queue and what is left: a heap
    orphaned: list[tuple[float, int, float]] = []  # fleets of dead workers, by the time of notice: a heap
    end, deaths, again = 0.0, 0, 0.0
    while waiting or orphaned:
        now = heapq.heappop(ready)
        if not waiting:
            now = max(now, orphaned[0][0])
        while orphaned and orphaned[0][0] <= now:
            heapq.heappush(waiting, heapq.heappop(orphaned)[1:])
        number, left = heapq.heappop(waiting)
        lives = random.exponential(dying.every) if dying else np.inf
        if dying is None or left <= lives:
            end = max(end, now + left)
            heapq.heappush(ready, now + left)
            continue
        deaths += 1
        lost = min(lives, random.uniform(0, dying.saved))
        again += lost
        heapq.heappush(orphaned, (now + lives + dying.noticed, number, left - lives + lost))
        heapq.heappush(ready, now + lives + dying.replaced + start)
    useful = float(np.sum(seconds))
    return Outlook(end, useful / (workers * end) if end else 1.0, deaths, again)
