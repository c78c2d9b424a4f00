"""Importance from many small batches at once, against one batch after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.triton import groups
from kenyon.backends.triton.groups import Sums
from kenyon.backends.triton.stacked import Stacked
from kenyon.data.tasks import Crop
from kenyon.methods import Method
from kenyon.methods.importance import GradientImportance, fisher_exact, fisher_large, fisher_published, mas
from kenyon.methods.penalties.weights import ActiveForgetting1, Confidence, StabilityProtection
from kenyon.models import Net
from kenyon.random import Purpose
from kenyon.training import Trainer, Training
from tests.interpreter import DEVICE, interpreted
from tests.references import hand_stream

TRAINING = Training(epochs=2, batch=16, rate=0.01, patience=1)


def convolutional() -> nn.Sequential:
    """Strides, padding, pooling that overlaps, dropout in three places, layers with and without a bias."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Conv2d(6, 7, (2, 1)),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(14, 9),
        nn.ReLU(),
        nn.Linear(9, 4, bias=False),
        nn.Dropout(0.5),
    )


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 5))


def strided() -> nn.Sequential:
    """Other windows, strides and layers between than ours, and no dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 3, (5, 2), stride=(2, 1), padding=(2, 0)),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Conv2d(3, 5, 1, bias=False),
        nn.Conv2d(5, 2, 3, stride=3, padding=2),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def fleet(
    importance: GradientImportance,
    *,
    crop: bool = False,
    sizes: tuple[int, ...] = (47, 30),
    build: Callable[[], nn.Sequential] = convolutional,
) -> Trainer:
    """Two runs of unequal size that have learned a task, on a CPU as a GPU computes them."""
    streams = [hand_stream([size, 20], seed=seed, noise=300) for seed, size in enumerate(sizes)]
    if crop:
        streams = [replace(stream, augmentation=Crop(padding=1, flip=True)) for stream in streams]
    net = Net(build(), (1, 8, 8), streams[0].class_counts)
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Stacked(net.backbone, (1, 8, 8), 1)
    if build is strided:
        net.executor.input_channels = 8  # as images come on a GPU
    penalties = (StabilityProtection(3.0), ActiveForgetting1(0.1), Confidence(0.2))
    return Trainer(net, streams, Method(importance, penalties, from_first=True), TRAINING)


def measured(monkeypatch: pytest.MonkeyPatch, at_once: int, importance: GradientImportance, **options: Any) -> Tensor:
    monkeypatch.setattr("kenyon.backends.triton.stacked.GROUPED", at_once)
    trainer = fleet(importance, **options)
    calls = []
    forward = Stacked.forward

    def counted(*what: Any, **more: Any) -> Tensor:
        calls.append(len(what[2]))
        return forward(*what, **more)

    trainer.enter_phase()
    trainer.start_phase()
    trainer.anchor.add_(0.1)  # so that protection pulls
    trainer.importance.fill_(0.7)
    with monkeypatch.context() as patch:
        patch.setattr(Stacked, "forward", counted)
        trainer.measure(importance, trainer.theta, Purpose.IMPORTANCE)
    assert max(calls) == at_once * importance.batch
    return trainer.estimate.clone()


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize(
    "importance", [fisher_published(), fisher_large(), mas(), fisher_exact()], ids=lambda i: i.name
)
def test_many_batches_say_what_each_of_them_says(
    importance: GradientImportance, crop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = measured(monkeypatch, 1, importance, crop=crop)
    assert alone.count_nonzero() > 0.9 * alone.numel()
    for at_once in (2, 4):  # 47 and 30 samples are 3 and 2 batches of 20: some are empty, some not full
        together = measured(monkeypatch, at_once, importance, crop=crop)
        torch.testing.assert_close(together, alone, rtol=2e-4, atol=1e-6 * float(alone.max()))


@pytest.mark.parametrize("build", [dense, strided])
@pytest.mark.parametrize("importance", [fisher_published(), fisher_large(), mas()], ids=lambda i: i.name)
def test_networks_without_dropout_are_measured_alike(
    importance: GradientImportance, build: Callable[[], nn.Sequential], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = measured(monkeypatch, 1, importance, build=build)
    together = measured(monkeypatch, 3, importance, build=build)
    assert alone.count_nonzero() > 0.5 * alone.numel()
    torch.testing.assert_close(together, alone, rtol=2e-4, atol=1e-6 * float(alone.max()))


def test_other_networks_take_one_batch_after_another() -> None:
    trainer = fleet(fisher_published())
    assert trainer.engine.measuring.at_once(20) > 1
    trainer.net.executor.windows = None
    assert trainer.engine.measuring.at_once(20) == 1


def test_large_maps_go_in_smaller_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second convolution has 4 x 4 windows of 3 x 3 pixels of 8 channels, three of them empty."""
    trainer = fleet(fisher_published())
    assert trainer.net.executor.windows == 16 * 9 * 8
    monkeypatch.setattr("kenyon.backends.triton.stacked.WINDOWS", 16 * 9 * 8 * 20 * 3 + 1)
    assert trainer.engine.measuring.at_once(20) == 3
    monkeypatch.setattr("kenyon.backends.triton.stacked.WINDOWS", 16 * 9 * 8 * 20 - 1)
    assert trainer.engine.measuring.at_once(20) == 1


@pytest.mark.kernels
@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("pushed", [True, False])
@pytest.mark.parametrize("shape", [(3, 20, 70, 150), (2, 40, 64, 128), (1, 1, 5, 3)])
def test_products_are_added_up(
    shape: tuple[int, int, int, int], pushed: bool, square: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    G, B, O, I = shape  # noqa: E741
    generator = torch.Generator().manual_seed(sum(shape))

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    dy, x, push, first = random(G, B, O), random(G, B, I), random(1, O, I), random(1, O, I)
    shares = torch.rand(G, generator=generator)
    if DEVICE == "cuda":  # the interpreter has no bfloat16
        dy, x = (part.to(torch.bfloat16) for part in (dy, x))
    expected = first.double().clone()
    for g in range(G):
        found = dy[g].double().T @ x[g].double() + (push[0] if pushed else 0)
        expected += float(shares[g]) * (found.square() if square else found.abs())
    for plain in (False, True):
        into = first.to(DEVICE).clone()
        sums = Sums({"w": into}, {"w": push.to(DEVICE)} if pushed else None, shares.to(DEVICE), square)
        monkeypatch.setattr(groups, "available", lambda x, plain=plain: not plain)
        sums.add_products("w", dy.to(DEVICE), x.to(DEVICE))
        torch.testing.assert_close(into.cpu().double(), expected, rtol=1e-2, atol=1e-2)


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
