"""Tasks that share one head: against plain PyTorch, with every method, saved and read again."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kenyon.data import Domains, Stream, Times, from_arrays
from kenyon.errors import ConfigError
from kenyon.methods import METHODS
from kenyon.models import Net
from kenyon.training import Training
from tests.references import make_trainer
from tests.training.fleets import SHORT, assert_same, method

PLAIN = Training(epochs=4, batch=64, rate=0.2, validation=0.0, optimiser="sgd", momentum=0.0, schedule="step")


def domains(count: int = 120, seed: int = 0) -> Stream:
    """Two classes told apart by one column, which another domain has elsewhere."""
    rng = np.random.default_rng(seed)
    y, of = np.arange(count) % 2, np.arange(count) // 2 % 3
    x = rng.normal(size=(count, 6))
    x[np.arange(count), of] += 8.0 * y
    return from_arrays(x, y, Domains(of), ordered=True).stream(seed, validation=0.2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def test_training_equals_plain_pytorch_with_one_head() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 2
    stream = from_arrays(x, y, Times(2), normalise=False).stream(0, validation=0.0)
    module = mlp()
    trainer = make_trainer(method("finetune"), [stream], PLAIN, backbone=module, learners=2)
    net, row = trainer.net, trainer.theta[0]
    assert net.class_counts == (2,) and net.layout.segments["head.weight"].shape == (1, 2, 4)
    learners, head = [copy.deepcopy(module).double() for _ in range(2)], nn.Linear(4, 2).double()
    with torch.no_grad():
        for k, learner in enumerate(learners):
            for name, p in learner.named_parameters():
                p.copy_(net.layout.view(row, name)[k])
        head.weight.copy_(net.layout.view(row, "head.weight")[0])
        head.bias.copy_(net.layout.view(row, "head.bias")[0])
    parameters = [p for m in (*learners, head) for p in m.parameters()]
    matrix = []
    for task in stream.tasks:
        for _ in range(4):
            said = head(sum(learner(task.train.images.double()) for learner in learners))
            slopes = torch.autograd.grad(F.cross_entropy(said, task.train.labels), parameters)
            for p, slope in zip(parameters, slopes, strict=True):
                p.data.sub_(0.2 * slope)
        with torch.no_grad():
            tests = [(head(sum(m(t.test.images.double()) for m in learners)), t.test.labels) for t in stream.tasks]
        matrix.append([100 * float((said.argmax(1) == labels).double().mean()) for said, labels in tests])
    trainer.run()
    torch.testing.assert_close(
        net.layout.view(row, "head.weight")[0].double(), head.weight.detach(), rtol=1e-4, atol=1e-5
    )
    found = [record["accuracy"][0] for record in trainer.position.records]
    np.testing.assert_allclose(found, matrix)


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("agscl")])
def test_every_method_learns_domains(name: str) -> None:
    trainer = make_trainer(method(name), [domains()], SHORT, backbone=mlp())
    trainer.run()
    assert len(trainer.position.records[-1]["accuracy"][0]) == 3


def test_runs_beside_each_other_change_nothing() -> None:
    streams = [domains(seed=0), domains(90, seed=1)]
    for name in ("caf-ewc", "er"):
        both = make_trainer(method(name), streams, SHORT, backbone=mlp())
        both.run()
        for run, stream in enumerate(streams):
            alone = make_trainer(method(name), [stream], SHORT, backbone=mlp())
            alone.run()
            assert_same(alone, 0, both, run)


@pytest.mark.parametrize("name", ["er", "caf-ewc"])
def test_a_time_may_lack_a_class(name: str) -> None:
    y = np.array([0, 1] * 20 + [0, 2] * 20 + [1, 2] * 20)
    stream = from_arrays(np.random.default_rng(0).normal(size=(120, 6)), y, Times(3)).stream(0, validation=0.2)
    trainer = make_trainer(method(name), [stream], SHORT, backbone=mlp())
    trainer.run()
    assert trainer.net.class_counts == (3,) and not trainer.position.diverged[0]


def test_a_shared_head_learns_all_domains_together() -> None:
    trainer = make_trainer(method("joint"), [domains(240)], replace(SHORT, epochs=40, rate=0.02), backbone=mlp())
    trainer.run()
    assert min(trainer.position.records[-1]["accuracy"][0]) > 85


def test_what_does_not_go_with_a_shared_head_is_told() -> None:
    with pytest.raises(ConfigError, match="share a head"):
        make_trainer(method("agscl"), [domains()], SHORT, backbone=mlp())
    with pytest.raises(ConfigError, match="need the same classes"):
        Net(mlp(), (6,), (2, 3), shared_head=True)


def test_a_learner_a_task_counts_a_head_for_each() -> None:
    trainer = make_trainer(method("discrete"), [domains()], SHORT, backbone=mlp())
    assert trainer.discrete is not None
    assert trainer.parameter_count == sum(w.numel() for w in trainer.discrete.weights(0).values())
