"""Proximal policy optimization: its settings, its losses, and the rollout that minibatches are drawn from.

Functions take one run, or all runs with leading axes. A rollout stays in place and on the device; observations are
stored as bytes, as the games give them.
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
    """The training regime of a suite: PPO, evaluations, and measuring importance. Defaults: Atari, as published.

    acting: in evaluations, `likely` takes the most likely action; `drawn` samples actions as in training, so that a
    nearly uniform policy plays at random instead of repeating one action.

    anchors: with `each`, every game's importance pulls towards the weights that this game left; with `last`, all of
    it pulls towards those that the previous game left, as for images. `published` is `each` for importances measured
    on rollouts, and `last` for path importances (SI, RWalk).
    """

    steps: int = 5_000_000  # per game, summed over copies
    copies: int = 128  # of a game, stepped together
    horizon: int = 64  # steps of each copy between updates
    epochs: int = 10  # passes over a rollout
    minibatches: int = 64  # per pass
    clip: float = 0.2  # range of the ratio of probabilities, and of the change of values
    discount: float = 0.99
    gae: float = 0.95  # lambda of the generalized advantage estimate
    entropy: float = 0.0
    value: float = 0.5  # coefficient of the value loss
    rate: float = 3e-4  # falls linearly to 0 over the updates of a game
    epsilon: float = 1e-5  # of Adam
    norm: float = 0.5  # largest norm of the gradient of a run, penalties included
    evaluations: int = 30  # per game, and at most one per update
    episodes: int = 10  # per game and evaluation
    acting: Acting = "likely"
    longest: int = 30_000  # steps after which an evaluation episode is scored without having ended
    importance_rollouts: int = 100
    importance_steps: int = 20  # new steps of each copy in such a rollout, which is as long as training's
    anchors: Anchors = "published"
    penalties_from: int = 2  # first game, counted from 1, in which penalties on weights act

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
                f"copies x horizon = {self.copies} x {self.horizon} cannot be divided into {self.minibatches} equal "
                "minibatches. Change copies, horizon or minibatches."
            )
        if self.updates < 1:
            raise ConfigError(
                f"steps={self.steps:,} is too few for one update: {self.copies} copies x {self.horizon} steps need "
                f"{self.samples:,}. Ask for more steps, or set copies and horizon lower."
            )

    @property
    def samples(self) -> int:
        """Steps per update, summed over copies."""
        return self.copies * self.horizon

    @property
    def updates(self) -> int:
        """Updates per game."""
        return self.steps // self.samples

    @property
    def evaluated(self) -> tuple[int, ...]:
        """The counts of updates after which games are evaluated, evenly spaced up to the end of the game."""
        count = min(self.evaluations, self.updates)
        return tuple((n + 1) * self.updates // count for n in range(count))


def advantages(rewards: Tensor, ended: Tensor, values: Tensor, discount: float, gae: float) -> Tensor:
    """Return generalized advantage estimates (..., T, N) of rewards and ends (..., T, N), values (..., T + 1, N).

    A_t = d_t + discount gae A_{t+1} with d_t = r_t + discount V_{t+1} - V_t; after the end of an episode both V_{t+1}
    and A_{t+1} are 0.
    """
    continues = 1 - ended.to(values.dtype)
    deltas = rewards + discount * continues * values[..., 1:, :] - values[..., :-1, :]
    estimates = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[..., 0, :])
    for t in reversed(range(deltas.shape[-2])):
        following = deltas[..., t, :] + discount * gae * continues[..., t, :] * following
        estimates[..., t, :] = following
    return estimates


def standardize(advantages: Tensor) -> Tensor:
    """Scale the advantages (R, T, N) of each run to mean 0 and standard deviation 1 over its rollout.

    Run by run: rounding of one sum over all runs would depend on their number.
    """
    return torch.stack([(run - run.mean()) / (run.std() + 1e-5) for run in advantages])


def policy_loss(log_p: Tensor, old_log_p: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return -mean min(ratio A, clipped ratio A) over samples (..., B): (...)."""
    ratio = (log_p - old_log_p).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean(-1)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return half the mean of max((V - G)^2, (V_clipped - G)^2), with V_clipped within `clip` of the old value."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square()).mean(-1)


def mean_entropy(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1).mean(-1)


def log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability of the actions (..., B) under logits (..., B, C)."""
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def sample_actions(logits: Tensor, uniform: Tensor, actions: int | Tensor) -> Tensor:
    """Sample one of the first `actions` actions for each row of logits (..., C), by a number (...) from [0, 1)."""
    cumulative = logits.softmax(-1).cumsum(-1)
    return (cumulative <= uniform.unsqueeze(-1)).sum(-1).clamp(max=actions - 1)


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
    """Return policy loss + value coefficient * value loss - entropy coefficient * entropy: (...)."""
    assert out.values is not None
    loss = policy_loss(log_probability(out.logits, actions), old_log_p, advantage, clip)
    loss = loss + value * value_loss(out.values, old_values, returns, clip)
    return loss - entropy * mean_entropy(out.logits) if entropy else loss


def network_input(net: Net, pixels: Tensor) -> Tensor:
    """Convert bytes (..., C, H, W) to numbers from 0 to 1, with the channels that the executor takes."""
    images = pixels.to(net.dtype) / 255
    channels = net.executor.input_channels
    if channels is None:
        return images
    return F.pad(images, (0, 0, 0, 0, 0, channels - images.shape[-3])).contiguous(memory_format=torch.channels_last)


def uniform_numbers(keys: Tensor, times: Tensor, copies: int) -> Tensor:
    """Return random numbers from [0, 1), which select actions, from keys (R,) at the times (T,): (R, T, N)."""
    steps = torch.arange(len(times), device=keys.device)
    words = Noise.at(keys, times.unsqueeze(1)).of_steps(steps).words(copies)  # (R * T, N)
    return ((words >> 8) & 0xFFFFFF).view(len(keys), len(times), copies).float() / (1 << 24)


@dataclass(frozen=True)
class Batch:
    """B samples of one run, or of all with a leading run axis."""

    images: Tensor  # (..., B, C, H, W)
    actions: Tensor  # (..., B), like all others
    log_p: Tensor  # of the actions, when they were taken
    values: Tensor  # when the actions were taken
    advantages: Tensor
    returns: Tensor
    weight: Tensor  # 1 / B
    member: Tensor | None = None  # all samples are of one game


class Rollout:
    """T steps of N copies for each of R runs, and their division into minibatches."""

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
        # Rewards and ends arrive from the games step by step, on the host.
        self.host_rewards, self.host_ended = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.bool_)
        self.uniform = torch.zeros(size, device=device)  # from [0, 1): selects the actions
        # Minibatches: `order` holds the samples of each; `step` is the next one.
        self.size, self.memory_size = steps * copies // minibatches, 0
        self.order = torch.zeros(runs, minibatches, self.size, dtype=torch.long, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.sizes = torch.full((runs,), steps * copies, device=device)
        self.weight = torch.full((runs, self.size), 1 / self.size, device=device)

    def draw(self, keys: Tensor) -> None:
        """Draw the random numbers that select the actions of all steps, from keys (R,)."""
        self.uniform.copy_(uniform_numbers(keys, torch.arange(self.steps, device=keys.device), self.copies))

    def drop_oldest(self, count: int) -> None:
        """Drop the oldest steps, and move the others to the front."""
        if count < self.steps:
            for buffer in (self.observations, self.actions, self.log_p, self.values):
                buffer[:, :-count] = buffer[:, count:].clone()
            for host in (self.host_rewards, self.host_ended):
                host[:, :-count] = host[:, count:].copy()

    def finish(self, discount: float, gae: float) -> None:
        """Compute advantages and returns, once all steps and the values after them are stored."""
        self.rewards.copy_(torch.from_numpy(self.host_rewards))
        self.ended.copy_(torch.from_numpy(self.host_ended))
        estimates = advantages(self.rewards, self.ended, self.values, discount, gae)
        self.returns.copy_(estimates + self.values[:, :-1])
        self.advantages.copy_(standardize(estimates))

    def shuffle(self, keys: Tensor) -> None:
        """Divide all samples into minibatches in a random order, from keys (R,)."""
        self.order.copy_(shuffled(keys, self.sizes, self.steps * self.copies).view_as(self.order))
        self.step.zero_()

    def batch(self, run: Runs) -> Batch:
        """Return the next minibatch of one run, or of all."""
        order = self.order[run].index_select(-2, self.step).squeeze(-2)  # (..., B)

        def select(buffer: Tensor) -> Tensor:
            if order.ndim == 1:  # one run
                return buffer[run].flatten(0, 1).index_select(0, order)
            flat = buffer.flatten(1, 2)
            return flat[torch.arange(len(flat), device=flat.device).unsqueeze(1), order]

        return Batch(
            network_input(self.net, select(self.observations)),
            select(self.actions),
            select(self.log_p),
            select(self.values[:, :-1]),
            select(self.advantages),
            select(self.returns),
            self.weight[run],
        )
