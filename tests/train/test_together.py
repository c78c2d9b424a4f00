"""A trainer whose network takes all runs together, on the emulated GPU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from kenyon.importance import fisher_published
from kenyon.methods import METHODS
from kenyon.nets import Net
from kenyon.nets.execution import Sequential
from kenyon.nets.tiled import Tiled, plan_stages
from kenyon.random import Purpose
from kenyon.streams.source import Group, Source
from kenyon.train import Trainer, Training
from tests.nets import emulation

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
SHAPE = (3, 8, 8)


def backbone() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 6, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(6, 6, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            drop2=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            dense=nn.Linear(96, 8),
            relu3=nn.ReLU(),
            drop3=nn.Dropout(0.5),
        )
    )


def trainer(*, together: bool) -> Trainer:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    images = torch.randint(0, 256, (40, *SHAPE), generator=g, dtype=torch.uint8)
    groups = (Group("a", (0, 1)), Group("b", (2, 3)))
    source = Source("x", images, labels, torch.arange(40) >= 28, tuple("0123"), groups, (0.5,) * 3, (0.3,) * 3)
    streams = [source.stream(seed, validation=0.2) for seed in (0, 1)]
    method = METHODS["caf-ewc"]({"lambda_sp": 10.0, "lambda_af": 1e-3, "gamma": 0.1})
    measured = replace(fisher_published(), batch=2)
    method = replace(method, importance=measured)
    bare = Net(backbone(), SHAPE, [2, 2], learners=2)
    learned = {name: shape for p in method.penalties for name, shape in p.learned(bare).items()}
    net = Net(backbone(), SHAPE, [2, 2], learners=2, learned=learned)
    if together:
        steps = Sequential(net.backbone, SHAPE, 2, folds=True).steps  # type: ignore[arg-type]
        stages = plan_stages(steps, SHAPE, net.layout, 2)
        assert stages is not None
        net.execute = Tiled(net.backbone, SHAPE, 2, stages, torch.device("cpu"), emulation.build)  # type: ignore
    return Trainer(net, streams, method, Training(epochs=2, batch=6))


def test_small_batches_at_once_equal_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    estimates = []
    for stacked in (1, 6):
        monkeypatch.setattr("kenyon.train.engine.STACKED", stacked)
        t = trainer(together=True)
        assert t.engine.at_once == max(1, stacked // 2)
        t._enter_phase()
        t._begin_phase()
        assert t.method.importance is not None
        t.measure(t.method.importance, t.theta, Purpose.IMPORTANCE)  # type: ignore[arg-type]
        estimates.append(t.estimate.clone())
    assert float(estimates[0].max()) > 0
    torch.testing.assert_close(estimates[1], estimates[0], rtol=1e-3, atol=1e-7)


def test_training_together_follows_training_one_after_another() -> None:
    """The same weights after two tasks, as nearly as bfloat16 allows."""
    ends = []
    for together in (True, False):
        t = trainer(together=together)
        assert t.net.together == together
        start = t.theta.clone()
        t.run()
        assert len(t.position.records) == 2 and t.live == [0, 1]
        ends.append(t.theta - start)
    size = t.net.layout.protected
    ours, expected = (end[:, :size].flatten() for end in ends)
    assert float(torch.cosine_similarity(ours, expected, dim=0)) > 0.9
