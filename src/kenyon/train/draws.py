"""What is random in a pass over a phase's data, of all runs: dropout, and what is shown of images.

Every number is a function of the run's seed, the phase, the epoch and what it is for: nothing is consumed or
must be saved. Tensors stay in place, so that captured steps can read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kenyon.random import Noise, Purpose, key
from kenyon.train.state import Position


class Draws:
    def __init__(self, seeds: Sequence[int], steps: int, device: torch.device, *, windows: bool) -> None:
        """`steps`: the most that a pass has; `windows`: whether images are shown at random."""
        self.seeds, self.device = tuple(seeds), device
        self.keys = torch.zeros(len(seeds), dtype=torch.long, device=device)  # of the dropout of this pass
        self.every_step = torch.arange(steps, device=device).unsqueeze(1)
        self.noise = Noise.at(self.keys, self.every_step)  # of all its steps
        self.windows = Noise.at(self.keys, self.every_step) if windows else None  # likewise

    def keys_at(self, at: Position, *words: int) -> Tensor:
        """One a run, (R,), for what `words` say."""
        return torch.tensor([key(seed, *words, at.phase, at.epoch) for seed in self.seeds]).to(self.device)

    def begin(self, at: Position, *words: int) -> None:
        """A new pass, known by `words`."""
        self.keys.copy_(self.keys_at(at, *words))
        self._fill(self.noise, self.keys)
        if self.windows is not None:
            self._fill(self.windows, self.keys_at(at, Purpose.AUGMENTATION, *words))

    def _fill(self, noise: Noise, keys: Tensor) -> None:
        drawn = Noise.at(keys, self.every_step)
        noise.first.copy_(drawn.first)
        noise.second.copy_(drawn.second)
