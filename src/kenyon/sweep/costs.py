"""How long a fleet will take, learned from those that have finished.

The logarithm of the seconds is linear: in the logarithms of epochs (of games: steps), runs, learners and width, with
one number more for every benchmark, method and kind of device. All have normal priors, so that what nothing is known
of yet takes its value from what is alike: a new method on a known benchmark costs about what methods cost there.

When a queue of fleets is through: a simulation of workers that each take the next one.

It predicts the time left of a sweep, and says beforehand what more machines would bring, and what it costs if they
die on the way.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kenyon.experiments.results import Kept
from kenyon.experiments.spec import Config, Configured
from kenyon.sweep.leases import EXPIRY
from kenyon.training.checkpoint import SAVE_EVERY

Array = NDArray[np.float64]

# Prior mean and standard deviation. Epochs cost their number. Runs and learners share a device: by `kenyon bench`, 20
# runs of CAF on CIFAR-100 take 20^0.68 times as long as one on an H200, 4 take 4^0.77 times on two cores. A benchmark
# may be a thousand times another.
SLOPES = {"epochs": (1.0, 0.1), "runs": (0.7, 0.3), "learners": (0.8, 0.3), "width": (0.5, 0.3)}
START = (math.log(0.05), 2.0)
KINDS = {"benchmark": 2.5, "method": 0.7, "device": 2.0}
NOISE = 0.3  # of the logarithm, before much was seen
LEAST = 0.03  # machines are never steadier


@dataclass(frozen=True)
class Work:
    """What decides the cost of a fleet."""

    benchmark: str
    method: str
    runs: int
    epochs: float  # of one run, all tasks and stages; of games, thousands of steps
    learners: int
    width: int

    @classmethod
    def of(cls, config: Configured, runs: int) -> Work:
        shape = config.architecture
        return cls(config.benchmark, config.method, runs, config.length, shape.learners, shape.width)


@dataclass(frozen=True)
class Seen:
    """A fleet that has finished."""

    work: Work
    device: str
    seconds: float


def seen_in(
    result: Kept[Any, Any], configured: Callable[[Mapping[str, Any]], Configured] = Config.from_dict
) -> list[Seen]:
    """The fleets of a result. Of one that had runs of several points, each point tells the same."""
    config = configured(result.config)
    found = []
    for fleet in result.fleets:
        runs = fleet.together or len(fleet.seeds)
        if fleet.seconds > 0 and fleet.seeds and not fleet.sharing:
            seconds = fleet.seconds * runs / len(fleet.seeds)
            found.append(Seen(Work.of(config, runs), fleet.device, seconds))
    return found


class Costs:
    """What some fleets will cost on a device, from those that were seen, if any."""

    def __init__(self, works: Sequence[Work], seen: Sequence[Seen] = (), device: str | None = None) -> None:
        """`device`: otherwise that which most of them were seen on."""
        devices = [one.device for one in seen] or [""]
        device = max(set(devices), key=devices.count) if device is None else device
        pairs = [*((one.work, one.device) for one in seen), *((work, device) for work in works)]
        columns = sorted({(kind, name) for work, on in pairs for kind, name in _kinds(work, on)})
        prior = np.array([START, *SLOPES.values(), *((0.0, KINDS[kind]) for kind, _ in columns)])
        rows = np.array([_row(work, on, columns) for work, on in pairs]).reshape(len(pairs), len(prior))
        X, self.rows = rows[: len(seen)], rows[len(seen) :]
        y = np.log([max(one.seconds, 1e-3) for one in seen]) - X @ prior[:, 0]
        self.noise = NOISE
        for _ in range(5):  # the noise is what the fit leaves, together with a few fleets' worth of the first guess
            self.covariance = np.linalg.inv(np.diag(prior[:, 1] ** -2) + X.T @ X / self.noise**2)
            change = self.covariance @ (X.T @ y) / self.noise**2
            left = y - X @ change
            self.noise = max(LEAST, math.sqrt((left @ left + 4 * NOISE**2) / (len(seen) + 4)))
        self.mean = prior[:, 0] + change

    @property
    def seconds(self) -> Array:
        """The median time of each fleet (F,)."""
        return np.asarray(np.exp(self.rows @ self.mean))

    def draws(self, count: int, seed: int = 0) -> Array:
        """Possible times (count, F). What is not known of a method, all of its fleets have in common."""
        random = np.random.default_rng(seed)
        known = random.multivariate_normal(self.mean, self.covariance, count, method="cholesky")
        return np.asarray(np.exp(known @ self.rows.T + self.noise * random.standard_normal((count, len(self.rows)))))


def _kinds(work: Work, device: str) -> list[tuple[str, str]]:
    return list(zip(KINDS, (work.benchmark, work.method, device), strict=True))


def _row(work: Work, device: str, columns: Sequence[tuple[str, str]]) -> list[float]:
    """1, the logarithms, and a 1 in the column of every kind that the fleet is of."""
    numbers = [math.log(max(1, getattr(work, name))) for name in SLOPES]
    mine = set(_kinds(work, device))
    return [1.0, *numbers, *(float(column in mine) for column in columns)]


@dataclass(frozen=True)
class Dying:
    """Workers die at random, and others take their place."""

    every: float  # seconds that a worker lives, on average
    saved: float = SAVE_EVERY  # seconds between states: half of it is trained again
    noticed: float = EXPIRY  # until a fleet's lease is over
    replaced: float = 0.0  # until there is another worker


@dataclass(frozen=True)
class Outlook:
    seconds: float  # until the last fleet has finished
    busy: float  # of the workers' time until then, the part they worked on what lasted
    deaths: int
    again: float  # seconds of training that were done again


def longest_first(seconds: Sequence[float]) -> list[int]:
    """The order of a queue: what takes longest begins first, so that nobody waits for it in the end."""
    return sorted(range(len(seconds)), key=lambda number: -seconds[number])


def simulate(
    seconds: Sequence[float], workers: int, dying: Dying | None = None, *, start: float = 0.0, seed: int = 0
) -> Outlook:
    """Fleets that take so long, in the order of the queue. `start`: seconds before a worker's first fleet."""
    random = np.random.default_rng(seed)
    ready = [start] * min(workers, max(1, len(seconds)))  # when each worker is free: a heap
    waiting = list(enumerate(map(float, seconds)))  # place in the queue and what is left: a heap
    asleep: list[tuple[float, int, float]] = []  # fleets of dead workers, and when that is noticed: a heap
    end, deaths, again = 0.0, 0, 0.0
    while waiting or asleep:
        now = heapq.heappop(ready)
        if not waiting:
            now = max(now, asleep[0][0])
        while asleep and asleep[0][0] <= now:
            heapq.heappush(waiting, heapq.heappop(asleep)[1:])
        number, left = heapq.heappop(waiting)
        lives = random.exponential(dying.every) if dying else np.inf
        if dying is None or left <= lives:
            end = max(end, now + left)
            heapq.heappush(ready, now + left)
            continue
        deaths += 1
        lost = min(lives, random.uniform(0, dying.saved))
        again += lost
        heapq.heappush(asleep, (now + lives + dying.noticed, number, left - lives + lost))
        heapq.heappush(ready, now + lives + dying.replaced + start)
    useful = float(np.sum(seconds))
    return Outlook(end, useful / (workers * end) if end else 1.0, deaths, again)
