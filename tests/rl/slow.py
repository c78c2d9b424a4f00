"""PPO from the equations in plain loops and float64, the reference of tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def slow_advantages(rewards: Tensor, ended: Tensor, values: Tensor, discount: float, gae: float) -> list[list[float]]:
    """Return the advantages of one run, (T, N), each as a sum over the rest of its episode."""
    T, N = rewards.shape
    found = [[0.0] * N for _ in range(T)]
    for n in range(N):
        for t in range(T):
            factor, total = 1.0, 0.0
            for s in range(t, T):
                following = 0.0 if ended[s, n] else float(values[s + 1, n])
                total += factor * (float(rewards[s, n]) + discount * following - float(values[s, n]))
                if ended[s, n]:
                    break
                factor *= discount * gae
            found[t][n] = total
    return found


def slow_policy_loss(log_p: Sequence[float], old: Sequence[float], advantage: Sequence[float], clip: float) -> float:
    total = 0.0
    for new, before, a in zip(log_p, old, advantage, strict=True):
        ratio = math.exp(new - before)
        clipped = 1 - clip if ratio < 1 - clip else 1 + clip if ratio > 1 + clip else ratio
        total += min(ratio * a, clipped * a)
    return -total / len(log_p)


def slow_value_loss(values: Sequence[float], old: Sequence[float], returns: Sequence[float], clip: float) -> float:
    total = 0.0
    for v, before, g in zip(values, old, returns, strict=True):
        near = before + max(-clip, min(clip, v - before))
        total += max((v - g) ** 2, (near - g) ** 2)
    return 0.5 * total / len(values)


class SlowNet:
    """The two dense layers of the small network for games, learner after learner, from the named parts of a row."""

    def __init__(self, parts: Mapping[str, Tensor], game: int) -> None:
        self.parts, self.game = parts, game
        self.learners = len(parts["dense1.weight"])

    def features(self, image: Tensor, k: int) -> Tensor:
        p, x = self.parts, image.reshape(-1).double() / 255
        x = torch.relu(p["dense1.weight"][k] @ x + p["dense1.bias"][k])
        return torch.relu(p["dense2.weight"][k] @ x + p["dense2.bias"][k])

    def logits(self, vector: Tensor) -> Tensor:
        return self.parts["head.weight"][self.game] @ vector + self.parts["head.bias"][self.game]

    def value(self, vector: Tensor) -> Tensor:
        return self.parts["value.weight"][self.game, 0] @ vector + self.parts["value.bias"][self.game, 0]

    def together(self, image: Tensor) -> Tensor:
        return sum(self.features(image, k) for k in range(self.learners))


def slow_ppo(net: SlowNet, samples: Sequence[Mapping[str, Tensor]], clip: float, value: float) -> Tensor:
    """Return the differentiable loss of samples."""
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        vector = net.together(sample["image"])
        log_p = net.logits(vector) - torch.logsumexp(net.logits(vector), 0)
        ratio = torch.exp(log_p[int(sample["action"])] - sample["log_p"].double())
        a, old, g = (sample[name].double() for name in ("advantage", "value", "return"))
        gain = torch.minimum(ratio * a, torch.clamp(ratio, 1 - clip, 1 + clip) * a)
        v = net.value(vector)
        near = old + torch.clamp(v - old, -clip, clip)
        total = total - gain + value * 0.5 * torch.maximum((v - g) ** 2, (near - g) ** 2)
    return total / len(samples)


def slow_divergence(net: SlowNet, samples: Sequence[Mapping[str, Tensor]], b: Tensor | None) -> Tensor:
    """AF-S as published: sum_k sum_{l != k} w_kl KL(p_l || p_k), p_l detached, mean over the samples."""
    total, K = torch.zeros((), dtype=torch.float64), net.learners
    for sample in samples:
        p = [torch.softmax(net.logits(net.features(sample["image"], k)), 0) for k in range(K)]
        for k in range(K):
            for other in range(K):
                if other != k:
                    w = 1.0 if b is None else K * torch.softmax(100 * b[k], 0)[other]
                    target = p[other].detach()
                    total = total + w * (target * (torch.log(target) - torch.log(p[k]))).sum()
    return total / len(samples)


def slow_entropy(net: SlowNet, samples: Sequence[Mapping[str, Tensor]]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        p = torch.softmax(net.logits(net.together(sample["image"])), 0)
        total = total - (p * torch.log(p)).sum()
    return total / len(samples)
