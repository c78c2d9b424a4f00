"""Fleets in this process, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kenyon.rl.runner import GamesProgress
from kenyon.sweep.orders import Order, Outcome
from kenyon.sweep.working import work


class Here:
    busy = 0  # an order is finished when it has been started

    def __init__(
        self, device: str, *, progress: GamesProgress | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.device, self.progress, self.stopping = device, progress, stop
        self.ended: list[tuple[Order, Outcome]] = []

    @property
    def free(self) -> bool:
        return not self.ended

    def start(self, order: Order) -> None:
        outcome = work(replace(order, device=self.device), progress=self.progress, stop=self.stopping)
        self.ended.append((order, outcome))

    def finished(self, seconds: float) -> list[tuple[Order, Outcome]]:
        ended, self.ended = self.ended, []
        if not ended:
            time.sleep(seconds)
        return ended

    def stop(self) -> None: ...

    def close(self) -> None: ...
