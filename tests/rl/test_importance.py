"""Importance from rollouts, anchors and whole training steps, against slow references written from the equations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods import find_method
from kenyon.methods.importance import fisher_published, mas
from kenyon.random import Purpose
from kenyon.rl.importance import anchor_per_game, check_importance, clip_norms, merge_anchors
from kenyon.rl.ppo import Rollout
from kenyon.rl.trainer import Agents
from tests.rl.fleets import SHORT, agents, clipped, gradient_of, parts_of, samples_of
from tests.rl.slow import SlowNet, slow_advantages, slow_divergence, slow_entropy, slow_ppo


@given(st.integers(0, 1000), st.floats(0.01, 10))
@settings(max_examples=25, deadline=None)
def test_gradients_are_clipped_row_by_row(seed: int, most: float) -> None:
    rows = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed)) * torch.tensor([[0.001], [1.0], [50.0]])
    found = rows.clone()
    clip_norms(found, most)
    for row, expected in zip(found, rows, strict=True):
        torch.testing.assert_close(row, clipped(expected.double(), most).float(), rtol=1e-4, atol=1e-6)
        assert float(row.norm()) <= most * (1 + 1e-5)


@given(seed=st.integers(0, 1000), games=st.integers(1, 5), how=st.sampled_from(["sum", "average", 0.7, "last"]))
@settings(max_examples=30, deadline=None)
def test_one_merged_anchor_equals_one_per_game(seed: int, games: int, how: Any) -> None:
    """The sum over games of F_t (x - theta_t)^2 and that of the merged pair differ by a constant."""
    g = torch.Generator().manual_seed(seed)
    found = torch.rand(games, 4, generator=g, dtype=torch.float64)
    found[:, 0] = 0  # a weight that never mattered
    where = torch.randn(games, 4, generator=g, dtype=torch.float64)
    weights = [1.0]  # of each game's F in the end, by the rule of accumulation
    for t in range(1, games):
        old, new = {"sum": (1, 1), "average": (t / (t + 1), 1 / (t + 1)), "last": (0, 1)}.get(how, (how, 1))
        weights = [old * w for w in weights] + [new]
    importance, anchor = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for t in range(games):
        importance, anchor = merge_anchors(importance, anchor, found[t], where[t], t, how)

    def separate(x: Tensor) -> float:
        return sum(w * float((f * (x - p) ** 2).sum()) for w, f, p in zip(weights, found, where, strict=True))

    def kept(x: Tensor) -> float:
        return float((importance * (x - anchor) ** 2).sum())

    x, y = torch.randn(2, 4, generator=g, dtype=torch.float64)
    assert kept(x) - kept(y) == pytest.approx(separate(x) - separate(y), abs=1e-9)
    assert anchor[0] == where[-1, 0]


def test_which_anchors_are_published() -> None:
    for name, each in (("ewc", True), ("mas", True), ("si", False), ("rwalk", False)):
        method = find_method(name)({"lambda_sp": 1.0})
        assert anchor_per_game(method, "published") is each
        assert anchor_per_game(method, "last") is False
    with pytest.raises(ConfigError, match="negative"):
        check_importance(find_method("si")({"lambda_sp": 1.0}), "each")
    with pytest.raises(ConfigError, match="fisher_exact"):
        check_importance(find_method("ewc")({"lambda_sp": 1.0, "fisher": "exact"}), "published")


class Recorded(Agents):
    """Stores the samples of all minibatches, in their order."""

    def keep(self) -> list[list[list[dict[str, Tensor]]]]:
        kept: list[list[list[dict[str, Tensor]]]] = [[] for _ in self.seeds]
        shuffle = Rollout.shuffle

        def noted(rollout: Rollout, keys: Tensor) -> None:
            shuffle(rollout, keys)
            for run in range(len(self.seeds)):
                kept[run] += [samples_of(rollout, run, m) for m in range(rollout.order.shape[1])]

        Rollout.shuffle = noted  # type: ignore[method-assign]
        try:
            self.found = self._measure(self.measured)
        finally:
            Rollout.shuffle = shuffle  # type: ignore[method-assign]
        return kept


@pytest.mark.parametrize("kind", ["fisher", "mas"])
@pytest.mark.parametrize("name", ["ewc", "caf-ewc"])
def test_importance_is_that_of_the_definition(kind: str, name: str) -> None:
    """Two rollouts of 8 steps and 4 copies, in 4 minibatches each, in the second game; norms are clipped or not."""
    ppo = replace(SHORT, norm=0.5 if name == "ewc" else 100.0)
    a = agents(name, ["catch", "sort"], [3, 4], ppo)
    a.__class__ = Recorded
    a.measured = fisher_published() if kind == "fisher" else mas()
    a.position.phase = 1
    a.heads.fill_(1)
    kept = a.keep()  # type: ignore[attr-defined]
    protected = a.net.layout.protected
    for run in range(2):
        parts = parts_of(a, run)
        net, expected = SlowNet(parts, 1), torch.zeros(a.net.layout.size, dtype=torch.float64)
        assert [len(m) for m in kept[run]] == [8] * 8  # as large as those of training
        for samples in kept[run]:
            if kind == "fisher":
                gradient = gradient_of(slow_ppo(net, samples, ppo.clip, ppo.value), parts)
                expected += clipped(gradient, ppo.norm) ** 2 / ppo.importance_rollouts
            else:
                norms = sum(torch.sqrt((net.together(s["image"]) ** 2).sum()) for s in samples)
                expected += gradient_of(norms, parts).abs() / ppo.importance_rollouts
        found = a.found[run].double()  # type: ignore[attr-defined]
        assert float(found.max()) > 0
        torch.testing.assert_close(found, expected[:protected], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("asked", [20, 8, 3, 1])
def test_rollouts_of_importance_continue_each_other(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the last 8 steps of one play, `new` of them new, with advantages over all 8; nothing else is played."""
    new, ppo = min(asked, 8), replace(SHORT, importance_steps=asked, importance_rollouts=4)
    a = agents("ewc", ["catch", "sort"], [3], ppo)
    a.enter_game()
    seen: list[dict[str, Tensor]] = []
    names = ("observations", "actions", "log_p", "values", "rewards", "ended", "advantages")
    shuffle = Rollout.shuffle

    def noted(rollout: Rollout, keys: Tensor) -> None:
        seen.append({name: getattr(rollout, name)[0].clone() for name in names})
        shuffle(rollout, keys)

    monkeypatch.setattr(Rollout, "shuffle", noted)
    a._measure(fisher_published())
    a.envs.leave()
    assert len(seen) == 4
    for before, after in pairwise(seen):
        for name in names[:-1]:
            kept = before[name][new:8]
            torch.testing.assert_close(after[name][: 8 - new], kept, rtol=0, atol=0 if name != "values" else 1e-6)
    for one in seen:
        found = slow_advantages(one["rewards"], one["ended"], one["values"], ppo.discount, ppo.gae)
        expected = torch.tensor(found, dtype=torch.float64)
        expected = (expected - expected.mean()) / (expected.std() + 1e-5)
        torch.testing.assert_close(one["advantages"].double(), expected, rtol=1e-4, atol=1e-5)
    last = torch.cat([one["observations"][-new:] for one in seen])
    assert len(last.flatten(1).unique(dim=0)) > new  # the game continues


@pytest.mark.parametrize("name", ["ewc", "cpr-ewc", "ewc-af1", "caf-ewc"])
def test_a_step_of_the_second_game_is_that_of_the_equations(name: str) -> None:
    """PPO, stability protection, AF-1, AF-S or CPR; the norm of their sum clipped; Adam with its own epsilon."""
    a = agents(name, ["catch", "sort"], [5, 6], lambda_sp=3.0)
    g = torch.Generator().manual_seed(0)
    a.importance.copy_(torch.rand(a.importance.shape, generator=g))
    a.anchor.add_(0.1 * torch.randn(a.anchor.shape, generator=g))
    a.position.phase = 1
    a.enter_game()
    a._start_game()
    a._collect(a.rollout, a._keys(Purpose.ACTION, 0))
    a.rate.fill_(2e-3)
    a.theta.add_(0.05 * torch.randn(a.theta.shape, generator=g))  # away from the policy that played: ratios differ
    a.rollout.shuffle(torch.tensor([1, 2]))
    before = [parts_of(a, run) for run in range(2)]
    samples = [samples_of(a.rollout, run, 0) for run in range(2)]
    a._step()
    a.envs.leave()
    size = a.net.layout.protected
    for run, parts in enumerate(before):
        net = SlowNet(parts, 1)
        loss = slow_ppo(net, samples[run], a.ppo.clip, a.ppo.value)
        held = torch.cat([p.reshape(-1) for p in parts.values()])[:size]
        loss = loss + 0.5 * 3.0 * (a.importance[run].double() * (held - a.anchor[run].double()) ** 2).sum()
        if name == "cpr-ewc":
            loss = loss - 0.2 * slow_entropy(net, samples[run])
        if name == "caf-ewc":
            divergence = slow_divergence(net, samples[run], parts["afs"])
            assert float(gradient_of(divergence, parts)[:size].abs().max()) > 1e-4  # a real gradient
            loss = loss + 0.3 * divergence
        if name in ("ewc-af1", "caf-ewc"):
            loss = loss + 0.05 / 2 * _decay(parts, a)
        gradient = clipped(gradient_of(loss, parts), a.ppo.norm)
        row = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parts.values()]))
        row.grad = gradient
        torch.optim.Adam([row], lr=2e-3, eps=a.ppo.epsilon).step()
        torch.testing.assert_close(a.gradient[run].double(), gradient, rtol=2e-3, atol=2e-6)
        moved = gradient.abs() > 1e-4  # where Adam's first step does not hang on the last bits
        torch.testing.assert_close(a.theta[run].double()[moved], row.detach()[moved], rtol=1e-3, atol=2e-5)


def _decay(parts: dict[str, Tensor], a: Agents) -> Tensor:
    """Return squares of all weights and of the present heads; several learners are weighted by K softmax(a_l)."""
    total = sum((parts[name][1] ** 2).sum() for name in ("head.weight", "head.bias", "value.weight", "value.bias"))
    assert isinstance(total, Tensor)
    for number, name in enumerate(a.net.backbone_names):
        K = len(parts[name])
        for k in range(K):
            w = K * torch.softmax(parts["af1"][number], 0)[k] if "af1" in parts else 1.0
            total = total + w * (parts[name][k] ** 2).sum()
    return total
