"""The plain reference computes what the library computes, so that their times can be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kenyon.backends.optimizers import BETA1
from kenyon.bench.plain import Plain
from kenyon.bench.subject import Subject, synthetic
from kenyon.experiments import BENCHMARKS, configure
from kenyon.models import Backbone

CPU = torch.device("cpu")


def without_dropout(backbone: Backbone) -> Backbone:
    """Switch dropout off: both sides draw different masks."""

    def build(width: int, learners: int = 1) -> nn.Module:
        module = backbone(width, learners)
        for layer in module.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return module

    return build


CASES = [("digits", "ewc", 2), ("digits", "caf-ewc", 0), ("digits", "caf-ewc", 2), ("r-cifar-100", "caf-ewc", 2)]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-task-{case[2] + 1}")
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Subject, Plain]:
    """Put both sides at the same weights of a task, with importances and anchors; one batch per epoch."""
    name, method, task = request.param
    bench = BENCHMARKS[name]
    monkeypatch.setitem(BENCHMARKS, name, replace(bench, backbone=without_dropout(bench.backbone)))
    settings = {"batch": 60, "lambda_sp": 300.0} | ({"width": 2} if name != "digits" else {})
    if method == "caf-ewc":
        settings |= {"lambda_af": 0.02, "gamma": 0.5, "learners": 3}
    config = configure(name, method, tasks=3, overrides=settings)
    subject = Subject(config, synthetic(bench, train=60 // bench.source.class_counts[0], test=4), 2, CPU)
    subject.begin(task)
    generator = torch.Generator().manual_seed(1)
    subject.trainer.theta.add_(0.02 * torch.randn(subject.trainer.theta.shape, generator=generator))
    plain = Plain(config, subject.streams[1], task, CPU)
    plain.take(subject.state(1))
    return subject, plain


def test_one_step_has_the_same_loss_and_gradient(pair: tuple[Subject, Plain]) -> None:
    subject, plain = pair
    loss = plain.loss(plain.images, plain.labels)
    loss.backward()
    assert plain.task == 0 or plain.stability().item() > 1e-6
    penalty = subject.penalty(1)
    subject.train_epoch()
    assert subject.steps == 1
    torch.testing.assert_close(subject.trainer.engine.loss[1] + penalty, loss.detach(), rtol=1e-5, atol=1e-6)
    # Adam's running mean after one step is the gradient, but for a factor.
    gradient = subject.trainer.tensors()["adam.first"][1] / (1 - BETA1)
    views = subject.trainer.net.layout.views(gradient)
    largest = gradient.abs().max().item()
    for name, p in plain.learners.named_parameters():
        k, _, tensor = name.partition(".")
        assert p.grad is not None
        torch.testing.assert_close(views[tensor][int(k)], p.grad, rtol=1e-3, atol=1e-5 * largest)
    for name, p in plain.heads[plain.task].named_parameters():
        torch.testing.assert_close(views[f"head.{name}"][plain.task], p.grad, rtol=1e-3, atol=1e-5 * largest)
    if "af1" in views and plain.task > 0:
        for name, p in (("af1", plain.af1_weights), ("afs", plain.afs_weights)):
            assert p.grad is not None and p.grad.abs().max() > 0
            torch.testing.assert_close(views[name], p.grad, rtol=1e-3, atol=1e-6)


def test_importance_is_the_same(pair: tuple[Subject, Plain]) -> None:
    subject, plain = pair
    subject.importance_pass()
    ours, theirs = subject.estimate(1), plain.importance_pass()
    largest = max(value.max().item() for value in theirs.values())
    assert largest > 0
    for name, value in theirs.items():
        k, _, tensor = name.partition(".")
        torch.testing.assert_close(ours[tensor][int(k)], value, rtol=2e-3, atol=1e-5 * largest)


def test_evaluation_is_the_same(pair: tuple[Subject, Plain]) -> None:
    subject, plain = pair
    together = [row[0] for row in plain.evaluation()]
    assert subject.evaluation()[1].tolist() == pytest.approx(together, abs=1e-4)


def test_an_epoch_moves_the_weights_in_both(pair: tuple[Subject, Plain]) -> None:
    subject, plain = pair
    before = plain.learners[0].state_dict()["dense1.weight"].clone()
    subject.train_epoch()
    plain.train_epoch()
    ours = subject.state(1)["theta"]["dense1.weight"][0]
    after = plain.learners[0].state_dict()["dense1.weight"]
    assert (after - before).abs().max() > 1e-4
    # Adam's first step is the gradient's sign: equal but where a gradient is nearly nothing.
    assert (ours - after).abs().le(1e-5).float().mean() > 0.95
