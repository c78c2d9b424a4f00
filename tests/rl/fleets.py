"""Small fleets that play toys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kenyon.methods import find_method
from kenyon.models import Net, small_games_mlp
from kenyon.rl.environment import Suite
from kenyon.rl.ppo import Ppo, Rollout
from kenyon.rl.trainer import Agents
from tests.rl.toys import SIDE, TOYS

SHORT = Ppo(
    steps=128,
    copies=4,
    horizon=8,
    epochs=2,
    minibatches=4,
    rate=3e-3,
    evaluations=2,
    episodes=3,
    importance_rollouts=2,
    importance_steps=4,
)
HYPER = {"lambda_sp": 50.0, "lambda_af": 0.05, "gamma": 0.3, "lambda_cpr": 0.2}


def convolutional(learners: int) -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 4, 3),
            relu1=nn.ReLU(),
            flatten=nn.Flatten(),
            dense1=nn.Linear(64, 16),
            relu2=nn.ReLU(),
        )
    )


def agents(
    name: str,
    games: Sequence[str],
    seeds: Sequence[int],
    ppo: Ppo = SHORT,
    *,
    suite: Suite = TOYS,
    width: int = 12,
    backbone: nn.Module | None = None,
    **hyper: Any,
) -> Agents:
    spec = find_method(name)
    method = spec({n: HYPER[n] for n in spec.required} | hyper)
    K = 3 if method.multi else 1
    module = backbone or small_games_mlp(width, K, pixels=SIDE * SIDE)
    counts = [suite.actions[game] for game in games]

    def net(learned: Mapping[str, tuple[int, ...]]) -> Net:
        return Net(module, suite.shape, counts, learners=K, learned=learned, values=True, in_place=False)

    learned = {n: shape for p in method.penalties for n, shape in p.learned(net({})).items()}
    return Agents(net(learned), suite, games, seeds, method, ppo)


def assert_same(one: Agents, run: int, other: Agents, other_run: int = 0) -> None:
    """To the last bit: everything that is kept of a run, and everything that was found."""
    mine, theirs = one.tensors(), other.tensors()
    assert set(mine) == set(theirs)
    for name in mine:
        assert torch.equal(mine[name][run], theirs[name][other_run]), name
    records = [[{n: v[r] for n, v in record.items()} for record in a.position.records] for a, r in
               ((one, run), (other, other_run))]  # fmt: skip
    assert repr(records[0]) == repr(records[1])
    assert one.position.diverged[run] == other.position.diverged[other_run]


def samples_of(rollout: Rollout, run: int, minibatch: int) -> list[dict[str, Tensor]]:
    """The samples of a minibatch, one by one."""
    found = []
    for place in rollout.order[run, minibatch].tolist():
        t, n = divmod(place, rollout.copies)
        found.append(
            {
                "image": rollout.observations[run, t, n].clone(),
                "action": rollout.actions[run, t, n].clone(),
                "log_p": rollout.log_p[run, t, n].clone(),
                "value": rollout.values[run, t, n].clone(),
                "advantage": rollout.advantages[run, t, n].clone(),
                "return": rollout.returns[run, t, n].clone(),
            }
        )
    return found


def parts_of(a: Agents, run: int) -> dict[str, Tensor]:
    """A run's weights by name, in float64, as leaves."""
    row, parts, start = a.theta[run].double(), {}, 0
    for name, segment in a.net.layout.segments.items():
        parts[name] = row[start : start + segment.size].reshape(segment.shape).clone().requires_grad_()
        start += segment.size
    return parts


def gradient_of(loss: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
    found = torch.autograd.grad(loss, list(parts.values()), materialize_grads=True, retain_graph=True)
    return torch.cat([g.reshape(-1) for g in found])


def clipped(gradient: Tensor, most: float) -> Tensor:
    norm = sum(float(g) ** 2 for g in gradient) ** 0.5
    return gradient * (most / (norm + 1e-6)) if norm > most else gradient
