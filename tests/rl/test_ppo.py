"""Advantages and losses against plain loops written from the equations, and against hand-worked numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.models import Outputs
from kenyon.rl.ppo import (
    Rollout,
    advantages,
    log_probability,
    mean_entropy,
    network_input,
    policy_loss,
    ppo_loss,
    sample_actions,
    standardize,
    value_loss,
)
from tests.rl.fleets import agents
from tests.rl.slow import slow_advantages, slow_policy_loss, slow_value_loss


@given(
    seed=st.integers(0, 1000), steps=st.integers(1, 9), copies=st.integers(1, 4), gae=st.sampled_from([0, 0.95, 1])
)
@settings(max_examples=25, deadline=None)
def test_advantages_are_sums_over_the_rest_of_an_episode(seed: int, steps: int, copies: int, gae: float) -> None:
    g = torch.Generator().manual_seed(seed)
    rewards = torch.randn(2, steps, copies, generator=g, dtype=torch.float64)
    ended = torch.rand(2, steps, copies, generator=g) < 0.3
    values = torch.randn(2, steps + 1, copies, generator=g, dtype=torch.float64)
    found = advantages(rewards, ended, values, 0.9, gae)
    for run in range(2):
        slow = torch.tensor(slow_advantages(rewards[run], ended[run], values[run], 0.9, gae), dtype=torch.float64)
        torch.testing.assert_close(found[run], slow)


def test_advantages_by_hand() -> None:
    """Rewards 1, 0, 2; the episode ends after the second step."""
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    ended = torch.tensor([[False], [True], [False]])
    values = torch.tensor([[0.5], [1.0], [0.0], [4.0]])
    # d = (1 + 0.5 * 1 - 0.5, 0 - 1, 2 + 0.5 * 4 - 0) = (1, -1, 4); A = (1 + 0.25 * -1, -1, 4)
    assert advantages(rewards, ended, values, 0.5, 0.5).flatten().tolist() == [0.75, -1.0, 4.0]


@given(seed=st.integers(0, 1000), size=st.integers(1, 12), clip=st.sampled_from([0.1, 0.2]))
@settings(max_examples=25, deadline=None)
def test_losses_are_those_of_the_equations(seed: int, size: int, clip: float) -> None:
    g = torch.Generator().manual_seed(seed)
    new, old, a, v, before, target = torch.randn(6, 2, size, generator=g, dtype=torch.float64).unbind()
    policy, value = policy_loss(0.3 * new, 0.3 * old, a, clip), value_loss(v, before, target, clip)
    for run in range(2):
        slow = slow_policy_loss((0.3 * new[run]).tolist(), (0.3 * old[run]).tolist(), a[run].tolist(), clip)
        assert float(policy[run]) == pytest.approx(slow)
        slow = slow_value_loss(v[run].tolist(), before[run].tolist(), target[run].tolist(), clip)
        assert float(value[run]) == pytest.approx(slow)


def test_the_whole_loss_by_hand() -> None:
    """Two actions of probability 1/2; the old policy took the first with 1/4, and the ratio 2 is clipped."""
    out = Outputs(torch.zeros(1, 2), None, torch.tensor([1.0]))
    terms = (torch.tensor([0]), torch.log(torch.tensor([0.25])), torch.tensor([3.0]))
    loss = ppo_loss(out, *terms, torch.tensor([0.0]), torch.tensor([2.0]), clip=0.2, value=0.5, entropy=0.1)
    # policy -1.2 * 3; value 1/2 max((1 - 2)^2, (0.2 - 2)^2) = 1.62; entropy log 2
    assert float(loss) == pytest.approx(-3.6 + 0.5 * 1.62 - 0.1 * math.log(2), rel=1e-5)


def test_a_clipped_ratio_has_no_gradient_and_a_harmful_one_has() -> None:
    log_p = torch.tensor([math.log(1.5), math.log(1.5)], requires_grad=True)
    loss = policy_loss(log_p, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.2)
    (slope,) = torch.autograd.grad(loss, log_p)
    assert slope.tolist() == pytest.approx([0.0, 0.75])


def test_actions_are_sampled_with_their_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, 2.0, -1e9]).expand(20_000, 4)
    chance = (torch.arange(20_000) + 0.5) / 20_000
    counts = torch.bincount(sample_actions(logits, chance, 3), minlength=4) / 20_000
    torch.testing.assert_close(counts, logits[0].softmax(0), atol=1e-4, rtol=0)
    assert int(sample_actions(logits[:1], torch.tensor([1.0]), 3)) == 2  # whatever rounding does to the sum
    torch.testing.assert_close(log_probability(logits[:3], torch.tensor([0, 1, 2])), logits[0].log_softmax(0)[:3])
    assert float(mean_entropy(torch.zeros(5, 8))) == pytest.approx(math.log(8))


def test_the_interval_of_a_number_selects_the_action() -> None:
    """Probabilities 0, 1/2 and 1/2: [0, 1/2) is the second action, [1/2, 1) the third, and the first never comes."""
    logits = torch.tensor([-torch.inf, 0.0, 0.0])
    for chance, action in ((0.0, 1), (0.4999, 1), (0.5, 2), (0.9999, 2)):
        assert int(sample_actions(logits, torch.tensor(chance), 3)) == action


def test_network_input() -> None:
    """Bytes become numbers from 0 to 1, with zero channels if the executor takes more."""
    pixels = torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(1, 1, 2, 2)
    for wanted in (None, 1, 3):
        net = SimpleNamespace(dtype=torch.float32, executor=SimpleNamespace(input_channels=wanted))
        seen = network_input(net, pixels)  # type: ignore[arg-type]
        assert seen.shape == (1, wanted or 1, 2, 2) and seen[0, 0].flatten().tolist() == pytest.approx(
            [0, 0.2, 1, 0.4]
        )
        assert not seen[:, 1:].any()


def test_advantages_have_mean_zero_and_deviation_one_run_by_run() -> None:
    found = standardize(torch.randn(3, 8, 4) * torch.tensor([1.0, 5.0, 0.1]).view(3, 1, 1) + 2)
    torch.testing.assert_close(found.flatten(1).mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.flatten(1).std(1), torch.ones(3), atol=1e-3, rtol=0)


def test_every_sample_is_in_one_minibatch_and_every_run_has_an_order_of_its_own() -> None:
    rollout = Rollout(agents("finetune", ["catch"], [0]).net, 2, 6, 4, (1, 6, 6), 3)
    rollout.shuffle(torch.tensor([5, 6]))
    assert torch.equal(rollout.order.flatten(1).sort().values, torch.arange(24).expand(2, -1))
    assert not torch.equal(rollout.order[0], rollout.order[1])
    rollout.actions.copy_(torch.arange(48).view(2, 6, 4))
    rollout.step.fill_(2)
    together, alone = rollout.batch(slice(None)), rollout.batch(1)
    assert torch.equal(together.actions[1], alone.actions) and torch.equal(together.images[1], alone.images)
    assert torch.equal(alone.actions, rollout.order[1, 2] + 24)
