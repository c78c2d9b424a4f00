"""Whether the losses of every run have stayed finite, asked without making a GPU wait."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class Finite:
    def __init__(self, rows: int, device: torch.device) -> None:
        self.device = device
        self.losses = torch.zeros(rows, device=device)  # of the phase, added up: finite as long as each of them is
        # Of epochs whose end the device has not confirmed: (epoch, whether each row is finite, when that is known).
        self.reports: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def clear(self) -> None:
        self.losses.zero_()

    def add(self, losses: Tensor) -> None:
        """Losses (R,); part of captured steps."""
        self.losses.add_(losses)

    def fallen(self, epoch: int, *, last: bool) -> list[tuple[int, list[int]]]:
        """After an epoch: (epoch, rows that were not finite after it) of the epochs that are known by now.

        A GPU is asked about the epoch before, which it has finished: waiting for this one would leave it idle. After
        the `last` of a phase it is waited for.
        """
        finite = torch.isfinite(self.losses).to("cpu", non_blocking=True)
        self.reports.append((epoch, finite, _finished_event(self.device)))
        known = []
        while len(self.reports) > (1 if self.device.type == "cuda" and not last else 0):
            earlier, finite, event = self.reports.popleft()
            if event is not None:
                event.synchronize()
            known.append((earlier, [row for row, there in enumerate(finite.tolist()) if not there]))
        return known


def _finished_event(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that was asked of a GPU so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
