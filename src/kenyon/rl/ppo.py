"""The training regime of a suite of games, as data: PPO, evaluations and how importance is measured.

Proximal policy optimisation: advantages and losses, of one run or of all with leading axes.

What a fleet has seen of its games since the last update, and the minibatches it learns from.

Everything stays in place and on the device, observations as they come: bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.models import Net, Outputs
from kenyon.random import Noise, shuffled
from kenyon.training.device import Runs
from kenyon.training.regime import check_fields

Acting = Literal["likely", "drawn"]
Anchors = Literal["published", "each", "last"]


@dataclass(frozen=True)
class Ppo:
    """Defaults: Atari, as published.

    acting likely: evaluations always take the most likely action. drawn: actions are drawn as in training, so that a
    policy which hardly prefers any plays at random instead of repeating one.

    anchors each: every game's importance pulls towards the weights that this game left. last: all of it pulls towards
    those of the game before, as for images. published: each for importances that are measured on rollouts, last for
    those from the way (SI, RWalk).
    """

    steps: int = 5_000_000  # of every game, all copies together
    copies: int = 128  # of a game, played at once
    horizon: int = 64  # steps of every copy between updates
    epochs: int = 10  # passes over what was seen, an update
    minibatches: int = 64  # a pass
    clip: float = 0.2  # of the ratio of probabilities, and of the change of values
    discount: float = 0.99
    gae: float = 0.95  # lambda of the generalised advantage estimate
    entropy: float = 0.0
    value: float = 0.5  # coefficient of the value loss
    rate: float = 3e-4  # falls linearly to 0 over the updates of a game
    epsilon: float = 1e-5  # of Adam
    norm: float = 0.5  # of the gradient of a run, penalties included
    evaluations: int = 30  # a game, and at most one an update
    episodes: int = 10  # an evaluation and game
    acting: Acting = "likely"
    longest: int = 30_000  # steps of an episode that is scored: one that has not ended by then, as it stands
    importance_rollouts: int = 100
    importance_steps: int = 20  # of every copy that are new in such a rollout, which is as long as training's
    anchors: Anchors = "published"
    penalties_from: int = 2  # the game, counted from 1, from which on penalties on weights act

    def __post_init__(self) -> None:
        check_fields(self)
        whole = ("copies", "horizon", "epochs", "minibatches", "evaluations", "episodes", "longest")
        for name in (*whole, "importance_rollouts", "importance_steps", "penalties_from"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("clip", "rate", "epsilon", "norm"):
            value = getattr(self, name)
            if not isfinite(value) or value <= 0:
                raise ConfigError(f"{name} must be a finite number above 0, not {value}.")
        for name in ("entropy", "value"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise ConfigError(f"{name} must be a finite number, 0 or larger, not {value}.")
        for name in ("discount", "gae"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a number from 0 to 1, not {getattr(self, name)}.")
        for name, words in (("acting", get_args(Acting)), ("anchors", get_args(Anchors))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} must be {', '.join(words)}, not '{getattr(self, name)}'.")
        if self.samples % self.minibatches:
            raise ConfigError(
                f"copies x horizon = {self.copies} x {self.horizon} cannot be dealt into {self.minibatches} equal "
                "minibatches. Change copies, horizon or minibatches."
            )
        if self.updates < 1:
            raise ConfigError(
                f"steps={self.steps:,} is too few for one update: {self.copies} copies x {self.horizon} steps need "
                f"{self.samples:,}. Ask for more steps, or set copies and horizon lower."
            )

    @property
    def samples(self) -> int:
        """Of an update."""
        return self.copies * self.horizon

    @property
    def updates(self) -> int:
        """Of a game."""
        return self.steps // self.samples

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The numbers of updates after which games are evaluated, evenly spaced; the last is the end of the game."""
        count = min(self.evaluations, self.updates)
        return tuple((n + 1) * self.updates // count for n in range(count))


def advantages(rewards: Tensor, ended: Tensor, values: Tensor, discount: float, gae: float) -> Tensor:
    """Generalised advantage estimates (..., T, N) of rewards and ends (..., T, N) and values (..., T + 1, N).

    A_t = d_t + discount gae A_{t+1} with d_t = r_t + discount V_{t+1} - V_t; behind the end of an episode both
    V_{t+1} and A_{t+1} are 0.
    """
    goes_on = 1 - ended.to(values.dtype)
    surprise = rewards + discount * goes_on * values[..., 1:, :] - values[..., :-1, :]
    found = torch.empty_like(surprise)
    following = torch.zeros_like(surprise[..., 0, :])
    for t in reversed(range(surprise.shape[-2])):
        following = surprise[..., t, :] + discount * gae * goes_on[..., t, :] * following
        found[..., t, :] = following
    return found


def standardised(found: Tensor) -> Tensor:
    """Advantages (R, T, N), those of every run with mean 0 and deviation 1 over the whole rollout.

    Run by run: how a large sum rounds would otherwise depend on how many runs there are.
    """
    return torch.stack([(run - run.mean()) / (run.std() + 1e-5) for run in found])


def policy_loss(log_p: Tensor, old_log_p: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-mean min(ratio A, clipped ratio A) over samples (..., B): (...)."""
    ratio = (log_p - old_log_p).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean(-1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the mean of max((V - G)^2, (V_clipped - G)^2), where V_clipped is within `clip` of the old value."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square()).mean(-1)


def mean_entropy(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean(-1)


def taken(logits: Tensor, actions: Tensor) -> Tensor:
    """The log-probability of the actions (..., B) under logits (..., B, C)."""
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def drawn(logits: Tensor, chance: Tensor, actions: int | Tensor) -> Tensor:
    """One of the first so many actions for each row of logits (..., C), by a number (...) from [0, 1)."""
    reached = logits.softmax(-1).cumsum(-1)
    return (reached <= chance.unsqueeze(-1)).sum(-1).clamp(max=actions - 1)


def ppo_loss(
    out: Outputs,
    actions: Tensor,
    old_log_p: Tensor,
    advantage: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    clip: float,
    value: float,
    entropy: float,
) -> Tensor:
    """Policy loss + value coefficient * value loss - entropy coefficient * entropy: (...)."""
    assert out.values is not None
    loss = policy_loss(taken(out.logits, actions), old_log_p, advantage, clip)
    loss = loss + value * value_loss(out.values, old_values, returns, clip)
    return loss - entropy * mean_entropy(out.logits) if entropy else loss


def looked_at(net: Net, pixels: Tensor) -> Tensor:
    """Bytes (..., C, H, W) as the network wants them, from 0 to 1."""
    images = pixels.to(net.dtype) / 255
    wanted = net.executor.input_channels
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
        self.size, self.memory_size = steps * copies // minibatches, 0
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
