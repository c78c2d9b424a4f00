"""What a fleet has seen of its games since the last update, and the minibatches it learns from.

Everything stays in place and on the device, observations as they come: bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.nets import Net
from kenyon.random import Noise, shuffled
from kenyon.rl.ppo import advantages, standardised
from kenyon.train.device import Runs


def looked_at(net: Net, pixels: Tensor) -> Tensor:
    """Bytes (..., C, H, W) as the network wants them, from 0 to 1."""
    images = pixels.to(net.dtype) / 255
    wanted = net.execute.input_channels
    if wanted is None:
        return images
    return F.pad(images, (0, 0, 0, 0, 0, wanted - images.shape[-3])).contiguous(memory_format=torch.channels_last)


def chances(keys: Tensor, times: Tensor, copies: int) -> Tensor:
    """Numbers from [0, 1), which decide what is done, from keys (R,) at the times (T,): (R, T, N)."""
    each = torch.arange(len(times), device=keys.device)
    words = Noise.at(keys, times.unsqueeze(1)).of_steps(each).words(copies)  # (R * T, N)
    return ((words >> 8) & 0xFFFFFF).view(len(keys), len(times), copies).float() / (1 << 24)


@dataclass(frozen=True)
class Batch:
    """B samples of one run, or of all with a leading run axis."""

    images: Tensor  # (..., B, C, H, W)
    actions: Tensor  # (..., B) and so all others
    log_p: Tensor  # of the actions, when they were taken
    values: Tensor  # as they were then
    advantages: Tensor
    returns: Tensor
    weight: Tensor  # 1 / B
    member: Tensor | None = None  # all samples are of one game


class Rollout:
    """T steps of N copies for each of R runs."""

    def __init__(
        self, net: Net, runs: int, steps: int, copies: int, shape: tuple[int, ...], minibatches: int
    ) -> None:
        self.net, self.steps, self.copies = net, steps, copies
        device, size = net.device, (runs, steps, copies)
        self.observations = torch.zeros(*size, *shape, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(size, dtype=torch.long, device=device)
        self.log_p, self.rewards, self.advantages, self.returns = (torch.zeros(size, device=device) for _ in range(4))
        self.values = torch.zeros(runs, steps + 1, copies, device=device)
        self.ended = torch.zeros(size, dtype=torch.bool, device=device)
        # Rewards and ends come from the games, step by step.
        self.given = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.bool_)
        self.chance = torch.zeros(size, device=device)  # from [0, 1): what decides which action is taken
        # Minibatches: `order` says which samples each has; `step` which is next.
        self.size, self.beside = steps * copies // minibatches, 0
        self.order = torch.zeros(runs, minibatches, self.size, dtype=torch.long, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.sizes = torch.full((runs,), steps * copies, device=device)
        self.weight = torch.full((runs, self.size), 1 / self.size, device=device)

    def draw(self, keys: Tensor) -> None:
        """New chances for all steps, from keys (R,)."""
        self.chance.copy_(chances(keys, torch.arange(self.steps, device=keys.device), self.copies))

    def forget(self, oldest: int) -> None:
        """Let so many of the oldest steps go; the others move to the front, and the places behind are free."""
        if oldest < self.steps:
            for buffer in (self.observations, self.actions, self.log_p, self.values):
                buffer[:, :-oldest] = buffer[:, oldest:].clone()
            for given in self.given:
                given[:, :-oldest] = given[:, oldest:].copy()

    def weigh(self, discount: float, gae: float) -> None:
        """Advantages and returns, once all steps and the values behind them are there."""
        self.rewards.copy_(torch.from_numpy(self.given[0]))
        self.ended.copy_(torch.from_numpy(self.given[1]))
        found = advantages(self.rewards, self.ended, self.values, discount, gae)
        self.returns.copy_(found + self.values[:, :-1])
        self.advantages.copy_(standardised(found))

    def shuffle(self, keys: Tensor) -> None:
        """Deal all samples into minibatches, from keys (R,)."""
        self.order.copy_(shuffled(keys, self.sizes, self.steps * self.copies).view_as(self.order))
        self.step.zero_()

    def batch(self, run: Runs) -> Batch:
        """The minibatch that the counter stands at, of one run or of all."""
        order = self.order[run].index_select(-2, self.step).squeeze(-2)  # (..., B)

        def some(buffer: Tensor) -> Tensor:
            if not isinstance(run, slice):
                return buffer[run].flatten(0, 1).index_select(0, order)
            flat = buffer.flatten(1, 2)
            return flat[torch.arange(len(flat), device=flat.device).unsqueeze(1), order]

        return Batch(
            looked_at(self.net, some(self.observations)),
            some(self.actions),
            some(self.log_p),
            some(self.values[:, :-1]),
            some(self.advantages),
            some(self.returns),
            self.weight[run],
        )
