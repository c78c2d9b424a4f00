"""The loop learns and forgets, and the numbers of a run are a function of its seed and configuration."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.func import functional_call

from kenyon.backends.triton.stacked import Stacked
from kenyon.models import Net, atari_cnn
from kenyon.random import Purpose, key
from kenyon.rl.environment import Moment, Suite, find_suite
from kenyon.rl.evaluation import episode_scores
from kenyon.rl.mini import MiniGames
from kenyon.rl.ppo import Ppo
from kenyon.rl.trainer import Agents
from kenyon.training import Interrupted
from kenyon.training.checkpoint import load_state, save_state
from tests.rl.fleets import SHORT, agents, assert_same, convolutional
from tests.rl.toys import SIDE, TOYS, Cues, Toy, make

ACTIONS = (6, 18, 18, 6, 18, 8, 9, 9)  # of the eight Atari games
LEARNING = Ppo(
    steps=4096,
    copies=16,
    horizon=16,
    epochs=4,
    minibatches=4,
    rate=5e-3,
    evaluations=1,
    episodes=20,
    importance_rollouts=10,
    importance_steps=16,
)


def test_the_atari_network_has_the_published_number_of_parameters() -> None:
    for width, learners, expected in ((128, 1, 4_115_556), (32, 5, 4_365_540)):
        with torch.device("meta"):
            backbone = atari_cnn(width, learners)
        net = Net(backbone, (4, 84, 84), ACTIONS, learners=learners, values=True, in_place=False)
        heads = (sum(ACTIONS) + len(ACTIONS)) * 513
        nc = width
        convolutions = (4 * 64 + 1) * nc + (16 * nc + 1) * 2 * nc + (9 * 2 * nc + 1) * nc
        assert net.parameter_count == learners * (convolutions + (49 * nc + 1) * 512) + heads == expected
        assert net.layout.protected == expected - heads  # heads are never protected


def test_ppo_learns_to_catch() -> None:
    a = agents("finetune", ["catch"], [0, 1], replace(LEARNING, steps=12_288), width=24)
    a.run()
    scores = torch.tensor(a.position.records[-1]["scores"])
    assert scores.min() >= 0.95  # moving at random catches one ball in about six
    assert a.position.records[-1]["moment"] == [[0, 12_288]] * 2


def test_fine_tuning_forgets_and_ewc_forgets_less() -> None:
    """Two games that group the same pictures differently; the best score is 5, and guessing gives 1.7."""
    seeds, ppo = range(6), replace(LEARNING, minibatches=2, rate=1e-2)
    last = {}
    for name, hyper in (("finetune", {}), ("ewc", {"lambda_sp": 1e4, "accumulate": "sum"})):
        a = agents(name, ["sort", "resort"], seeds, ppo, width=6, **hyper)
        a.run()
        first, last[name] = (torch.tensor(a.position.records[n]["scores"]) for n in (0, -1))
        assert first.mean() > 4.5
    assert last["finetune"][:, 0].mean() < 4.3
    assert last["ewc"][:, 0].mean() > last["finetune"][:, 0].mean() + 0.6
    assert last["finetune"][:, 1].mean() > 4.5


@pytest.mark.parametrize("name", ["finetune", "ewc", "mas", "si", "rwalk", "cpr-ewc", "caf-ewc", "random-init"])
def test_runs_together_equal_runs_alone(name: str) -> None:
    games = ["catch", "sort"]
    together = agents(name, games, [3, 8])
    together.run()
    assert len(together.position.records) == 4
    for run, seed in enumerate([3, 8]):
        alone = agents(name, games, [seed])
        alone.run()
        assert_same(together, run, alone)
    assert not torch.equal(together.theta[0], together.theta[1])


def test_convolutions_run_by_run_equal_runs_alone() -> None:
    """The network computes run after run, and threads step the games of several runs."""
    together = agents("ewc", ["catch", "sort"], [3, 8, 9], backbone=convolutional(1))
    assert not together.net.together
    together.run()
    alone = agents("ewc", ["catch", "sort"], [8], backbone=convolutional(1))
    alone.run()
    assert_same(together, 1, alone)


def test_copies_in_turns_are_played_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 1 and 3 copies: observations, actions and advantages are the same, and so are the learned weights."""

    def few(game: str, copies: int, seed: int, first: int) -> MiniGames:
        games = MiniGames(game, first + copies, seed)
        monkeypatch.setattr(games, "reseed", lambda seed: cut(MiniGames(game, first + copies, seed).keys))

        def cut(keys: npt.NDArray[np.uint64]) -> None:
            games.keys, games.count = keys[first:], copies

        cut(games.keys)
        return games

    def in_turns(game: str, copies: int, seed: int, training: bool) -> list[MiniGames]:
        return [few(game, 1, seed, 0), few(game, copies - 1, seed, 1)]

    suite = replace(find_suite("rl-mini"), make_in_turns=in_turns)
    games, net = list(suite.games[:2]), nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    rollouts, found = [], []
    for turns in (False, True):
        monkeypatch.setattr(Agents, "_in_turns", turns)
        a = agents("ewc", games, [3], suite=suite, backbone=net)
        a.enter_game()
        assert a.envs.training is not None and len(a.envs.training.copies) == 1 + turns
        a._start_game()
        a._collect(a.rollout, a._keys(Purpose.ACTION, 0))
        rollouts.append(a.rollout)
        a.run()
        found.append(a.theta)
    for name in ("observations", "actions", "rewards", "ended"):
        assert torch.equal(getattr(rollouts[0], name), getattr(rollouts[1], name)), name
    for name in ("log_p", "values", "advantages"):
        torch.testing.assert_close(getattr(rollouts[1], name), getattr(rollouts[0], name))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_a_run_that_diverges_leaves_the_others_as_they_are() -> None:
    together = agents("ewc", ["catch", "sort"], [3, 8])
    together.theta[0].fill_(math.nan)
    together.run()
    alone = agents("ewc", ["catch", "sort"], [8])
    alone.run()
    assert together.position.diverged == [[0, 0], None] and together.live == [1]
    assert_same(together, 1, alone)


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "caf-ewc"])
def test_a_resumed_run_has_the_numbers_of_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    games = ["catch", "sort"]
    whole = agents(name, games, [1, 2])
    moments: list[tuple[int, int]] = []
    whole.run(lambda a: bool(moments.append((a.position.phase, a.position.epoch))))
    assert moments == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]
    for moment in ((0, 2), (0, 4), (1, 0), (1, 3)):
        path = tmp_path / f"{moment}.safetensors"

        def stop(a: Agents, moment: tuple[int, int] = moment, path: Path = path) -> bool:
            here = (a.position.phase, a.position.epoch) == moment
            if here:
                save_state(path, a.tensors(), a.position, "me")
            return here

        with pytest.raises(Interrupted):
            agents(name, games, [1, 2]).run(stop)
        continued = agents(name, games, [2])  # one of its runs alone
        continued.theta.zero_()
        continued.position.phase, continued.position.epoch = moment
        if moment[1]:
            continued.enter_game()
        tensors = continued.tensors()
        assert any(tensor.startswith("games.") for tensor in tensors) == bool(moment[1])
        continued.position = load_state(path, tensors, "me", [1])
        continued.restore(tensors)
        continued.run()
        assert_same(continued, 0, whole, 1)


def test_games_that_cannot_be_saved_begin_new_episodes(tmp_path: Path) -> None:
    seeds: list[int] = []

    def silent(game: str, count: int, seed: int, training: bool) -> Toy:
        toy = make(game, count, seed, training)
        toy.saves = False
        seeds.append(seed)
        return toy

    suite = Suite("mute", "", TOYS.actions, TOYS.shape, silent)
    path = tmp_path / "state.safetensors"

    def stop(a: Agents) -> bool:
        save_state(path, a.tensors(), a.position, "me")
        return a.position.epoch == 1

    with pytest.raises(Interrupted):
        agents("ewc", ["catch"], [1], suite=suite).run(stop)
    continued = agents("ewc", ["catch"], [1], suite=suite)
    continued.position.epoch = 1
    continued.enter_game()
    tensors = continued.tensors()
    continued.position = load_state(path, tensors, "me")
    continued.restore(tensors)
    continued.run()
    assert len(continued.position.records) == 2
    assert len(set(seeds)) == len(seeds)  # other episodes than before


def test_evaluations_play_the_same_games_again_with_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A game is made once per run for all its evaluations, each has a seed of its own, and all are closed."""
    made: list[Toy] = []
    begun: list[int] = []

    def counted(game: str, count: int, seed: int, training: bool) -> Toy:
        toy = make(game, count, seed, training)
        if not training:
            made.append(toy)
            reset = toy.reset
            monkeypatch.setattr(toy, "reset", lambda: begun.append(int(toy.state["seed"])) or reset())
        return toy

    a = agents("finetune", ["catch", "sort"], [3, 4], suite=replace(TOYS, make=counted))
    a.run()
    assert len(made) == 2 * 2 and all(toy.closed for toy in made)
    assert len(begun) == len(set(begun)) == 2 * (2 * 1 + 2 * 2)  # runs x (evaluations x games seen)


def test_scores_of_a_policy_are_the_same_alone_and_together() -> None:
    a = agents("caf-ewc", ["catch", "sort", "resort"], [3, 4, 5])
    theta = a.theta * torch.tensor([1.0, 3.0, 9.0]).view(3, 1)

    def games(runs: list[int]) -> list[list[Toy]]:
        return [[make(g, 4, 10 * run + n, False) for n, g in enumerate(a.games)] for run in runs]

    together = episode_scores(a.net, theta, games([0, 1, 2]), [0, 1, 2], live=[0, 1, 2], longest=1000)
    assert not together.isnan().any()
    for run in range(3):
        alone = episode_scores(a.net, theta[run : run + 1], games([run]), [0, 1, 2], live=[0], longest=1000)
        assert torch.equal(together[run], alone[0])
    some = episode_scores(a.net, theta, games([0, 1, 2]), [0, 1, 2], live=[0, 2], longest=1000)
    assert some[1].isnan().all() and torch.equal(some[2], together[2])


@pytest.mark.parametrize(("longest", "steps"), [(100, 5), (3, 3)])
def test_scores_are_those_of_episodes_and_of_the_most_likely_action(longest: int, steps: int) -> None:
    """A head that always says 1 is right whenever the cue wants 1. An episode has 5 steps; one that takes too long is
    scored as it stands.
    """
    a = agents("finetune", ["sort"], [0])
    a.theta.zero_()
    a.net.layout.view(a.theta, "head.bias")[0, 0, 1] = 5.0
    toys = [[Cues(6, 3, (0, 0, 1, 1, 2, 2))]]
    found = episode_scores(a.net, a.theta, toys, [0], live=[0], longest=longest)[0, 0]
    reference = Cues(6, 3, (0, 0, 1, 1, 2, 2))
    reference.reset()
    right = torch.zeros(6)
    for _ in range(steps):
        right += torch.from_numpy(reference.right[reference.state["cue"]] == 1)
        reference.step(torch.ones(6, dtype=torch.long).numpy())
    assert torch.equal(found.float(), right)


def test_actions_of_an_evaluation_may_be_drawn() -> None:
    """A head that says 1 with probability 0.7 and 2 with 0.3 takes them about so often, never the third; the same
    keys draw alike, in a fleet as alone, and `acting` decides whether there are any.
    """
    a = agents("finetune", ["sort"], [0, 1], replace(SHORT, acting="drawn"))
    a.theta.zero_()
    a.net.layout.view(a.theta, "head.bias")[:, 0] = torch.tensor([-50.0, math.log(0.7), math.log(0.3)])

    class Noted(Cues):
        def step(self, actions: npt.NDArray[np.int64]) -> Moment:
            taken.append(actions.copy())
            return super().step(actions)

    def played(runs: list[int], keys: list[int]) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        taken.clear()
        toys = [[Noted(200, 3, (0, 0, 1, 1, 2, 2))] for _ in runs]
        found = episode_scores(
            a.net,
            a.theta[runs],
            toys,
            [0],
            live=range(len(runs)),
            longest=9,
            draws=torch.tensor([key(k) for k in keys]),
        )
        return found, np.stack(taken)

    taken: list[npt.NDArray[np.int64]] = []
    scores, actions = played([0, 1], [5, 6])
    assert actions.min() == 1 and abs((actions == 2).mean() - 0.3) < 0.03  # 2,000 of them
    alone, mine = played([1], [6])
    assert torch.equal(alone[0], scores[1]) and np.array_equal(mine, actions[1::2])
    assert not np.array_equal(actions[::2], actions[1::2])
    a.run()
    likely = agents("finetune", ["sort"], [0, 1])
    likely.run()
    assert a.position.records != likely.position.records and torch.isfinite(a.theta).all()


def test_several_action_counts_share_a_network() -> None:
    """Absent actions of a game are never taken."""

    class Few(Cues):
        actions = 2

    def made(game: str, count: int, seed: int, training: bool) -> Toy:
        return Few(count, seed, (0, 1) * 3) if game == "few" else make(game, count, seed, training)

    suite = Suite("mixed", "", {"few": 2, "catch": 3}, (1, SIDE, SIDE), made)
    a = agents("caf-ewc", ["few", "catch"], [0, 1], SHORT, suite=suite)
    a.run()
    assert torch.isfinite(a.theta).all() and torch.isfinite(a.importance).all()


@pytest.mark.parametrize("learners", [1, 3])
def test_the_atari_network_is_the_same_however_it_is_computed(learners: int) -> None:
    """Features and gradients of all learners at once, as on a GPU, equal those of plain modules."""
    module = atari_cnn(4, learners)
    executor = Stacked(module, (4, 84, 84), learners)
    module.double()
    g = torch.Generator().manual_seed(1)
    params = {
        name: (0.1 * torch.randn(learners, *p.shape, generator=g, dtype=torch.float64)).requires_grad_()
        for name, p in module.named_parameters()
    }
    images = torch.rand(2, 4, 84, 84, generator=g, dtype=torch.float64)
    found = executor.forward(params, images, None)
    plain = torch.stack(
        [functional_call(module, {n: p[k] for n, p in params.items()}, images) for k in range(learners)]
    )
    torch.testing.assert_close(found, plain)
    weight = torch.randn(found.shape, generator=g, dtype=torch.float64)
    for mine, theirs in zip(
        *(torch.autograd.grad((out * weight).sum(), list(params.values())) for out in (found, plain)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
