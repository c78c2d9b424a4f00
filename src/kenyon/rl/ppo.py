"""Proximal policy optimisation: advantages and losses, of one run or of all with leading axes."""

from __future__ import annotations

import torch
from torch import Tensor

from kenyon.nets import Outputs


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
