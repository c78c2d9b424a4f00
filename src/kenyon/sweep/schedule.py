"""When a queue of fleets is through: a simulation of workers that each take the next one.

It predicts the time left of a sweep, and says beforehand what more machines would bring, and what it costs if they
die on the way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kenyon.experiments.training import SAVE_EVERY
from kenyon.sweep.leases import EXPIRY


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
