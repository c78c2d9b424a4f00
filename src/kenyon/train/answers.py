"""What a device is asked after every epoch without making it wait; and whether all losses have stayed finite."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class Answers:
    """Numbers of every row after an epoch. Those of a GPU are known an epoch later, when it has come to them: waiting
    for them at once would leave it idle.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()  # epoch, answer, when it is there

    def ask(self, epoch: int, rows: Tensor) -> None:
        self.waiting.append((epoch, rows.to("cpu", non_blocking=True, copy=True), _finished_event(self.device)))

    def known(self, *, last: bool = False) -> list[tuple[int, list[float]]]:
        """(epoch, rows) of the epochs that are known by now; of all, the `last` one waited for."""
        found = []
        while len(self.waiting) > (1 if self.device.type == "cuda" and not last else 0):
            epoch, rows, event = self.waiting.popleft()
            if event is not None:
                event.synchronize()
            found.append((epoch, rows.tolist()))
        return found


class Finite:
    """Whether the losses of every run have stayed finite."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.losses = torch.zeros(rows, device=device)  # of the phase, added up: finite as long as each of them is
        self.answers = Answers(device)

    def clear(self) -> None:
        self.losses.zero_()

    def add(self, losses: Tensor) -> None:
        """Losses (R,); part of captured steps."""
        self.losses.add_(losses)

    def fallen(self, epoch: int, *, last: bool, settled: Tensor | None = None) -> list[tuple[int, list[int]]]:
        """After an epoch: (epoch, rows that were not finite after it) of the epochs that are known by now, and of all
        after the `last` of a phase. Rows that are `settled` were finite until then; nothing later is kept of them.
        """
        finite = torch.isfinite(self.losses)
        self.answers.ask(epoch, finite if settled is None else finite | settled)
        known = self.answers.known(last=last)
        return [(earlier, [row for row, there in enumerate(rows) if not there]) for earlier, rows in known]


def _finished_event(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that was asked of a GPU so far."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
