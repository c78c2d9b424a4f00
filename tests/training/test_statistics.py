"""Batch normalisation in a fleet: against plain PyTorch, for every task apart, and untouched by all but learning."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.data import Stream
from kenyon.errors import ConfigError
from kenyon.models import Net
from kenyon.random import Purpose
from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.batches import Fleet, Loader
from kenyon.training.checkpoint import load_state, save_state
from tests.backends.test_zoo import assert_close, exact_float32
from tests.references import hand_stream, make_trainer, normalised
from tests.training.fleets import SHORT, assert_same, method

# One batch an epoch, so that its order does not matter; nothing is held out and no momentum.
PLAIN = Training(epochs=3, batch=40, rate=0.1, validation=0.0, optimiser="sgd", momentum=0.0, schedule="step")


def normalising(**options: Any) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, **options), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4)
    )


def statistics(net: Net, row: Tensor, task: int, learner: int) -> dict[str, Tensor]:
    return {name: net.layout.view(row, name)[task, learner] for name in net.statistics.initial}


@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_equals_plain_pytorch(momentum: float | None) -> None:
    stream, module = hand_stream([40, 40], held_out=0), normalising(momentum=momentum)
    trainer = make_trainer(method("finetune"), [stream], PLAIN, backbone=module, learners=2)
    net, row = trainer.net, trainer.theta[0].clone()
    learners = [copy.deepcopy(module).double() for _ in range(2)]
    heads = [nn.Linear(4, 2).double() for _ in range(2)]
    with torch.no_grad():
        for k, learner in enumerate(learners):
            for name, p in learner.named_parameters():
                p.copy_(net.layout.view(row, name)[k])
        for t, head in enumerate(heads):
            head.weight.copy_(net.layout.view(row, "head.weight")[t])
            head.bias.copy_(net.layout.view(row, "head.bias")[t])
    seen: list[list[dict[str, Tensor]]] = []  # the buffers of every learner after each task
    for task, head in zip(stream.tasks, heads, strict=True):
        parameters = [p for module in (*learners, head) for p in module.parameters()]
        x = normalised(task.train, stream)
        for _ in range(3):
            loss = F.cross_entropy(head(sum(learner(x) for learner in learners)), task.train.labels)
            for p, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.data.sub_(0.1 * slope)
        seen.append([{n: b.clone() for n, b in learner.named_buffers()} for learner in learners])
    trainer.run()
    for k, learner in enumerate(learners):
        for name, p in learner.named_parameters():
            ours = net.layout.view(trainer.theta[0], name)[k]
            torch.testing.assert_close(ours.double(), p.detach(), rtol=1e-4, atol=1e-5)
        for t in (0, 1):
            for name, value in statistics(net, trainer.theta[0], t, k).items():
                torch.testing.assert_close(value.double(), seen[t][k][name].double(), rtol=1e-4, atol=1e-5)
    # A task is tested by its own statistics, whichever was learned last.
    for t, task in enumerate(stream.tasks):
        with torch.no_grad():
            for k, learner in enumerate(learners):
                learner.eval().load_state_dict(seen[t][k], strict=False)
            said = heads[t](sum(learner(normalised(task.test, stream)) for learner in learners))
        right = 100 * (said.argmax(1) == task.test.labels).double().mean()
        assert trainer.position.records[-1]["accuracy"][0][t] == pytest.approx(float(right))


class Residual(nn.Module):
    """A ResNet of one block, whose parameters begin anywhere in a row where its width is odd."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.down = nn.Sequential(nn.Conv2d(width, width + 1, 1, stride=2), nn.BatchNorm2d(width + 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.down((x + self.second(x)).relu()).mean((2, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("width", [3, 8, 15, 21, 61])
def test_any_width_trains_on_a_gpu_as_on_a_cpu(width: int, learners: int) -> None:
    streams = [hand_stream([40, 40], seed=0), hand_stream([40, 40], seed=1)]
    ends = []
    for device in ("cpu", "cuda"):
        net = Net(Residual(width), (1, 8, 8), (2, 2), learners=learners, device=device)
        trainer = Trainer(net, streams, method("ewc"), PLAIN)
        with exact_float32():
            trainer.run()
        ends.append((trainer.theta.cpu(), trainer.importance.cpu()))
    for found, expected in zip(*ends, strict=True):
        for run in range(2):
            assert_close(found[run], expected[run], (width, learners, run), 1e-2)


def test_samples_of_several_tasks_are_each_normalised_by_their_own() -> None:
    net = Net(normalising(), (1, 8, 8), (2, 2), learners=2)
    row, x = net.initial([0])[0], torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    net.layout.view(row, "2.running_mean")[1] += 1.5
    heads, member = torch.tensor([0, 1]), torch.tensor([0, 1, 1, 0, 1, 0])
    together = net.forward(row, x, heads, member, own=True)
    for t in (0, 1):
        alone = net.forward(row, x[member == t], torch.tensor([t]), own=True)
        torch.testing.assert_close(together.logits[member == t], alone.logits)
        assert together.statistics is None and alone.statistics is None


def fleet_of(name: str, streams: list[Stream], training: Training = SHORT) -> Trainer:
    return make_trainer(method(name), streams, training, backbone=normalising())


@pytest.mark.parametrize("name", ["caf-ewc", "ewc-af2", "joint", "discrete", "icl-ewc", "random-init", "si"])
def test_runs_beside_each_other_change_nothing(name: str) -> None:
    streams = [hand_stream([50, 30], seed=0), hand_stream([33, 21], seed=1)]
    both = fleet_of(name, streams)
    both.run()
    for run, stream in enumerate(streams):
        alone = fleet_of(name, [stream])
        alone.run()
        assert_same(alone, 0, both, run)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    stream = hand_stream([50, 30])
    whole, first, second = (fleet_of("ewc-af2", [stream]) for _ in range(3))
    whole.run()
    with pytest.raises(Interrupted):
        first.run(lambda t: (t.position.phase, t.position.epoch) == (1, 1))
    save_state(tmp_path / "state", first.tensors(), first.position, "me")
    second.position = load_state(tmp_path / "state", second.tensors(), "me")
    second.run()
    assert_same(second, 0, whole)


def test_only_learning_moves_statistics_and_they_weigh_nothing() -> None:
    trainer = fleet_of("caf-ewc", [hand_stream([50, 30])])
    trainer.run()
    net, before = trainer.net, trainer.theta.clone()
    counts = net.layout.view(trainer.theta[0], "2.num_batches_tracked")  # (T, K): Adam and AF-1 left them alone
    assert (counts == counts.round()).all() and (counts[0] >= 1).all() and (counts[1] > counts[0]).all()
    importance = trainer.method.importance
    assert importance is not None and importance.dropout  # type: ignore[union-attr]
    trainer.position.phase = 1
    trainer.enter_phase()
    trainer.measure(importance, trainer.theta, Purpose.IMPORTANCE)  # type: ignore[arg-type]
    assert torch.equal(trainer.theta, before)
    names = set(net.statistics.initial)
    assert all(net.layout.segments[name].start >= net.layout.protected for name in names)
    assert (net.layout.view(net.groups, "2.running_mean") == -1).all()
    bare = Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 4)), (1, 8, 8), (2, 2), learners=3)
    assert net.parameter_count == bare.parameter_count + 3 * 2 * (5 + 4)


def test_a_batch_is_filled_up_with_samples_of_the_task() -> None:
    stream = hand_stream([7])
    fleet = Fleet([stream, replace(hand_stream([3]), seed=1)], torch.device("cpu"))
    loader = Loader(fleet, 4, 7, joint=False, wrap=True)
    loader.fill(fleet.samples("train", [0]))
    train = [s.tasks[0].train.index.tolist() for s in fleet.streams]
    expected = [train[0] + train[0][:1], (train[1] * 3)[:8]]
    assert loader.index.flatten(1).tolist() == expected
    assert loader.weight.gt(0).flatten(1).tolist() == [[True] * 7 + [False], [True] * 3 + [False] * 5]


def test_statistics_that_are_held_are_constants() -> None:
    module = normalising()
    with torch.no_grad():
        module[2].running_mean.fill_(0.5)
    module[2].eval()
    trainer = make_trainer(method("finetune"), [hand_stream([40])], SHORT, backbone=module)
    assert set(trainer.net.statistics.initial) == {
        f"5.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }
    trainer.run()
    module[2].train()
    given = Net(module, (1, 8, 8), (2,), start="given")
    module[2].running_mean.add_(1)  # the user's module is the user's
    assert (given.layout.view(given.initial([0])[0], "2.running_mean") == 0.5).all()
    drawn = Net(module, (1, 8, 8), (2,))
    assert (drawn.layout.view(drawn.initial([0])[0], "2.running_mean") == 0).all()


def test_what_batch_normalisation_cannot_do_is_told() -> None:
    with pytest.raises(ConfigError, match="Replay"):
        fleet_of("er", [hand_stream([20, 20])])
    with pytest.raises(ConfigError, match="batch of one sample"):
        fleet_of("ewc", [hand_stream([20])], replace(SHORT, batch=1)).run()
    with pytest.raises(ConfigError, match="need float32"):
        Net(normalising(), (1, 8, 8), (2,), dtype=torch.bfloat16)
