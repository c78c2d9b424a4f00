"""Training without gradients of large dense layers, against training with them: on a CPU as a GPU computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kenyon.backends.triton.stacked import Stacked
from kenyon.methods import Method
from kenyon.methods.active_forgetting import ExpandedNetwork
from kenyon.methods.base import Replay
from kenyon.methods.importance import fisher_large, fisher_published
from kenyon.methods.path_importance import si
from kenyon.methods.penalties.weights import (
    ActiveForgetting1,
    ActiveForgetting2,
    Confidence,
    Divergence,
    StabilityProtection,
)
from kenyon.models import Net
from kenyon.training import Trainer, Training
from kenyon.training import gradients as factoring
from tests.references import hand_stream

PROTECT = StabilityProtection(3.0)
METHODS = {
    "ewc": Method(fisher_large(), (PROTECT, Confidence(0.2)), from_first=True),
    "af1": Method(fisher_published(), (PROTECT, ActiveForgetting1(0.1))),
    "af2": Method(fisher_published(), (PROTECT, ActiveForgetting2(0.5)), mechanisms=(ExpandedNetwork(),)),
    "caf": Method(fisher_published(), (PROTECT, ActiveForgetting1(0.1), Divergence(0.1, adaptive=True)), multi=True),
    "er": Method(None, (), replay=Replay(3, 4, "mixed")),
}


def backbone() -> nn.Sequential:
    """The layer without a bias is not one of those whose gradients are factors."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(80, 12),
        nn.ReLU(),
        nn.Linear(12, 9, bias=False),
        nn.ReLU(),
        nn.Linear(9, 6),
        nn.ReLU(),
    )


def trained(
    method: Method, monkeypatch: pytest.MonkeyPatch, *, factored: bool, device: str = "cpu", **changes: Any
) -> Trainer:
    monkeypatch.setattr(factoring, "available", lambda x: factored)
    monkeypatch.setattr(factoring, "LARGE", 1)
    streams = [hand_stream(sizes, seed=seed, noise=300) for seed, sizes in enumerate(([47, 20, 9], [30, 20, 12]))]
    settings = {"optimiser": "sgd", "rate": 0.05, "momentum": 0.9, "carry": True} | changes
    training = Training(epochs=3, batch=16, patience=1, **settings)
    made: dict[str, Any] = {"learners": 3 if method.multi else 1, "device": device}
    bare = Net(backbone(), (1, 8, 8), streams[0].class_counts, **made)
    net = Net(backbone(), (1, 8, 8), streams[0].class_counts, **made, learned=method.learned(bare))
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Stacked(net.backbone, (1, 8, 8), net.learners)
    trainer = Trainer(net, streams, method, training)
    trainer.run()
    return trainer


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_training_is_the_same(name: str, carry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS[name]
    ours = trained(method, monkeypatch, factored=True, carry=carry)
    assert list(ours.engine.factors) == ["4.weight", "8.weight"]
    expected = trained(method, monkeypatch, factored=False, carry=carry)
    assert not expected.engine.factors
    for (what, mine), theirs in zip(ours.tensors().items(), expected.tensors().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=what)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_training_is_the_same_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    ours = trained(METHODS[name], monkeypatch, factored=True, device="cuda")
    expected = trained(METHODS[name], monkeypatch, factored=False, device="cuda")
    assert list(ours.engine.factors) == ["4.weight", "8.weight"] and not expected.engine.factors
    away = (ours.theta - expected.theta).norm() / expected.theta.norm()
    assert away < 1e-2  # learners compute in bfloat16, and one of its numbers may be rounded the other way


def test_gradients_are_written_for_those_who_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    integral = Method(si(), (PROTECT,))
    assert not trained(integral, monkeypatch, factored=True).engine.factors
    assert not trained(METHODS["ewc"], monkeypatch, factored=True, optimiser="adam").engine.factors


def test_a_batch_that_grows_too_large_has_its_gradients_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 16 have 4 old samples beside them from the second task on."""
    monkeypatch.setattr(factoring, "MOST", 18)
    ours = trained(METHODS["er"], monkeypatch, factored=True)
    assert not ours.engine.factors
    expected = trained(METHODS["er"], monkeypatch, factored=False)
    torch.testing.assert_close(ours.theta, expected.theta, rtol=1e-4, atol=1e-5)


def test_small_layers_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factoring, "available", lambda x: True)
    net = Net(backbone(), (1, 8, 8), (2, 2))
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Stacked(net.backbone, (1, 8, 8), 1)
    monkeypatch.setattr(factoring, "LARGE", 80 * 12)
    assert list(factoring.factors_of_layers(net, 2, 16)) == ["4.weight"]
    net.executor = Net(backbone(), (1, 8, 8), (2, 2)).executor  # as a CPU computes it
    assert not factoring.factors_of_layers(net, 2, 16)
