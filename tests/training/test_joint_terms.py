"""Joint training with the terms of continual learning, against the same done slowly in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.data import Stream
from kenyon.random import Purpose, key, normal
from kenyon.training import Training
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import HYPER, method


def slow_joint(hand: Hand, first: Tensor, stream: Stream, name: str, training: Training) -> Tensor:
    """Every epoch is one batch of all samples of all tasks; terms act from the first epoch on."""
    K, T, af, gamma = hand.K, len(stream.tasks), HYPER["lambda_af"], HYPER["gamma"]
    theta = first.double().clone()
    parts = hand.cut(theta)
    for number, part in enumerate(n for n in ("af1", "afs") if n in parts):
        parts[part].copy_(normal(key(stream.seed, Purpose.LEARNED, 0, number), tuple(parts[part].shape)))

    def samples(row: Tensor, part: str) -> list[tuple[Tensor, Tensor, Tensor]]:
        splits = [getattr(task, part) for task in stream.tasks]
        return [(*hand.logits(row, normalised(s, stream), t), s.labels) for t, s in enumerate(splits)]

    def ce(row: Tensor, part: str) -> Tensor:
        each = [F.cross_entropy(logits, labels, reduction="none") for logits, _, labels in samples(row, part)]
        return torch.cat(each).mean()

    def forgetting(row: Tensor) -> Tensor:
        if name == "joint-mcl":
            return 0.0 * row.sum()
        p = hand.cut(row)
        total = sum(p[h][t].square().sum() for h in ("head.weight", "head.bias") for t in range(T))  # all are in use
        for number, tensor in enumerate(hand.tensors):
            weight = K * torch.softmax(p["af1"][number], 0) if "af1" in p else torch.ones(K)
            total = total + sum(weight[i] * p[tensor][i].square().sum() for i in range(K))
        return af / 2 * total

    def divergence(row: Tensor) -> Tensor:
        if name != "joint-caf":
            return 0.0 * row.sum()
        own = torch.cat([own for _, own, _ in samples(row, "train")], dim=1).softmax(2)
        b, total = hand.cut(row)["afs"], 0.0 * row.sum()
        for k in range(K):
            w = K * torch.softmax(100 * b[k], 0)  # adaptive from the beginning
            for other in range(K):
                if other != k:
                    q = own[other].detach()
                    total = total + w[other] * (q * (q / own[k]).log()).sum(1).mean()
        return gamma * total

    rate, best_loss, waited, best = training.rate, float("inf"), 0, theta.clone()
    theta = theta.requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=rate)
    for _ in range(training.epochs):
        loss = ce(theta, "train") + forgetting(theta) + divergence(theta)
        theta.grad = torch.autograd.grad(loss, theta)[0]
        optimizer.step()
        with torch.no_grad():
            validation = float(ce(theta, "validation") + forgetting(theta))
        if validation < best_loss:
            best_loss, best, waited = validation, theta.detach().clone(), 0
        else:
            waited += 1
            if waited >= training.patience:
                rate, waited = rate / training.drop, 0
                theta = theta.detach().clone().requires_grad_()
                optimizer = torch.optim.Adam([theta], lr=rate)
    return best


@pytest.mark.parametrize("name", ["joint-af1", "joint-mcl", "joint-caf"])
def test_joint_training_with_terms_equals_the_protocol_done_slowly(name: str) -> None:
    stream = hand_stream([47, 35, 50], seed=5, held_out=13, noise=1000)
    training = Training(epochs=9, batch=132, rate=0.01, patience=1)
    trainer = make_trainer(method(name), [stream], training, backbone=plain_mlp(5, smooth=True))
    assert trainer.net.learners == (1 if name == "joint-af1" else 3)
    hand = Hand(DigitsLearner(5, smooth=True), trainer.net.learners, (2, 2, 2), learned=trainer.net.learned)
    expected = slow_joint(hand, trainer.theta[0].clone(), stream, name, training)
    trainer.run()
    torch.testing.assert_close(trainer.theta[0].double(), expected, rtol=0.02, atol=2e-3)
    close = torch.isclose(trainer.theta[0].double(), expected, rtol=2e-3, atol=2e-4)
    assert float(close.double().mean()) > 0.99
    assert len(trainer.position.records) == 1
