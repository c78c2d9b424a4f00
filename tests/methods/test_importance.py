"""Importances against loops over batches and samples in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.data import Stream
from kenyon.errors import ConfigError
from kenyon.methods import Method
from kenyon.methods.importance import (
    GradientImportance,
    accumulated,
    fisher_core50,
    fisher_exact,
    fisher_large,
    fisher_published,
    mas,
    mas_core50,
    mas_large,
)
from kenyon.methods.path_importance import si
from kenyon.methods.penalties.predictions import Confidence
from kenyon.methods.penalties.weights import ActiveForgetting1, StabilityProtection
from kenyon.models import digits_mlp
from kenyon.random import Purpose, random_bytes
from kenyon.training import Trainer, Training
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp

WIDTH = 5
# Two full batches and a partial one; a single full one; less than one.
STREAMS = [hand_stream([47, 9], seed=0), hand_stream([20, 9], seed=1), hand_stream([13, 9], seed=2)]


def measured(
    importance: GradientImportance, streams: Sequence[Stream], K: int, backbone: nn.Module
) -> tuple[Trainer, Tensor]:
    """Importance of the first weights for the first task, by the trainer."""
    method = Method(importance, (StabilityProtection(1.0),))
    trainer = make_trainer(method, streams, Training(epochs=1, batch=16), backbone=backbone, learners=K)
    trainer.enter_phase()
    trainer.measure(importance, trainer.theta, Purpose.IMPORTANCE)
    return trainer, trainer.estimate.double()


def gradient(hand: Hand, row: Tensor, loss: str, x: Tensor, y: Tensor, keep: list[list[Tensor]] | None) -> Tensor:
    leaf = row.clone().requires_grad_()
    logits, _ = hand.logits(leaf, x, 0, keep)
    if loss == "mean cross-entropy":
        value = sum(-logits[i].log_softmax(0)[y[i]] for i in range(len(y))) / len(y)
    else:  # sum over the batch of the L2 norm of the logits
        value = sum((logits[i] ** 2).sum().sqrt() for i in range(len(y)))
    return torch.autograd.grad(value, leaf)[0][: hand.protected]


def by_hand(
    name: str, hand: Hand, row: Tensor, stream: Stream, masks: list[list[list[Tensor]]] | None = None
) -> Tensor:
    split = stream.tasks[0].train
    x, y, N = normalised(split, stream), split.labels, len(split)
    total = torch.zeros(hand.protected, dtype=torch.float64)
    size = 1 if name == "fisher_exact" else 20
    for b, start in enumerate(range(0, N, size)):
        some = slice(start, min(start + size, N))
        n = len(y[some])
        keep = None if masks is None else [[m[:n] for m in mine] for mine in masks[b]]
        if name == "fisher_published":  # 20 g_b^2 / N, for the last, partial batch as well
            total += 20 * gradient(hand, row, "mean cross-entropy", x[some], y[some], keep) ** 2 / N
        elif name == "fisher_exact":  # g_n^2 / N
            total += gradient(hand, row, "mean cross-entropy", x[some], y[some], keep) ** 2 / N
        else:  # |g_b| / N
            total += gradient(hand, row, "norms", x[some], y[some], keep).abs() / N
    return total


def assert_close(ours: Tensor, expected: Tensor) -> None:
    assert expected.count_nonzero() > len(expected) / 4
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


MAKE = {"fisher_published": fisher_published, "fisher_exact": fisher_exact, "mas": mas}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("K", [1, 3])
def test_without_dropout(name: str, K: int) -> None:
    """Three runs of different sizes in one fleet, each against its own loops."""
    hand = Hand(DigitsLearner(WIDTH), K, (2, 2))
    trainer, ours = measured(MAKE[name](), STREAMS, K, plain_mlp(WIDTH))
    for run, stream in enumerate(STREAMS):
        assert_close(ours[run], by_hand(name, hand, trainer.theta[run].double(), stream))


@pytest.mark.parametrize("strengths", [0.7, (0.7, 0.0, 2.0)])
def test_the_fisher_information_of_large_images_has_the_penalties_too(strengths: float | tuple[float, ...]) -> None:
    """64^2 / N times the squared gradient of cross-entropy - lambda_cpr H + lambda_af / 2 |theta|^2."""
    hand, af = Hand(DigitsLearner(WIDTH), 1, (2, 2)), 0.03
    cpr = strengths if isinstance(strengths, float) else torch.tensor(strengths)
    method = Method(
        fisher_large(), (StabilityProtection(1.0), ActiveForgetting1(af), Confidence(cpr)), from_first=True
    )
    trainer = make_trainer(method, STREAMS, Training(epochs=1, batch=16), backbone=plain_mlp(WIDTH), learners=1)
    trainer.enter_phase()
    trainer.measure(fisher_large(), trainer.theta, Purpose.IMPORTANCE)
    for run, stream in enumerate(STREAMS):
        split, row = stream.tasks[0].train, trainer.theta[run].double()
        x, y, N = normalised(split, stream), split.labels, len(split)
        expected = torch.zeros(hand.protected, dtype=torch.float64)
        for some in (slice(start, start + 20) for start in range(0, N, 20)):
            leaf = row.clone().requires_grad_()
            log_p = hand.logits(leaf, x[some], 0, None)[0].log_softmax(1)
            entropy = -(log_p.exp() * log_p).sum(1).mean()
            each = cpr if isinstance(cpr, float) else float(cpr[run])
            loss = F.nll_loss(log_p, y[some]) - each * entropy + af / 2 * (leaf**2).sum()
            expected += 64**2 / N * torch.autograd.grad(loss, leaf)[0][: hand.protected] ** 2
        assert_close(trainer.estimate[run].double(), expected)


@pytest.mark.parametrize("name", ["fisher_published", "mas"])
def test_with_dropout(name: str) -> None:
    """Training mode: the masks come from the run's own noise for this pass, batch by batch."""
    K = 3
    hand = Hand(DigitsLearner(WIDTH), K, (2, 2))
    trainer, ours = measured(MAKE[name](), STREAMS, K, digits_mlp(WIDTH))
    for run, stream in enumerate(STREAMS):
        masks = []
        for batch in range(3):
            # First 20 samples x 16 bytes for the K * WIDTH hidden units, then 20 x 384 for the K * 128 features.
            noise = random_bytes(trainer.engine.draws.keys, torch.tensor([batch]), 20 * (16 + 384))[run]
            hidden, last = noise[: 20 * 16].view(20, 16), noise[20 * 16 :].view(20, 384)
            masks.append(
                [
                    [
                        (hidden[:, WIDTH * k : WIDTH * (k + 1)] >= 64).double() * 256 / 192,
                        (last[:, 128 * k : 128 * (k + 1)] >= 128).double() * 2,
                    ]
                    for k in range(K)
                ]
            )
        row = trainer.theta[run].double()
        assert_close(ours[run], by_hand(name, hand, row, stream, masks))
        assert not torch.allclose(ours[run], by_hand(name, hand, row, stream), rtol=0.05)


def test_the_exact_fisher_has_no_dropout() -> None:
    hand = Hand(DigitsLearner(WIDTH), 2, (2, 2))
    trainer, ours = measured(fisher_exact(), STREAMS[1:], 2, digits_mlp(WIDTH))
    for run, stream in enumerate(STREAMS[1:]):
        assert_close(ours[run], by_hand("fisher_exact", hand, trainer.theta[run].double(), stream))


@pytest.mark.parametrize("name", MAKE)
def test_classes_that_are_not_there_do_not_count(name: str) -> None:
    """The first task has 2 classes, the second 5: the first is measured as if there were no other."""
    counts = (2, 5)
    streams = [hand_stream([31, 20], seed=3, classes=counts)]
    hand = Hand(DigitsLearner(WIDTH), 1, counts)
    trainer, ours = measured(MAKE[name](), streams, 1, plain_mlp(WIDTH))
    assert_close(ours[0], by_hand(name, hand, trainer.theta[0].double(), streams[0]))


def test_measuring_again_gives_the_same() -> None:
    trainer, ours = measured(fisher_published(), STREAMS, 2, digits_mlp(WIDTH))
    before = trainer.theta.clone()
    trainer.measure(fisher_published(), trainer.theta, Purpose.IMPORTANCE)
    assert torch.equal(trainer.estimate.double(), ours)
    assert torch.equal(trainer.theta, before)


# ---------------------------------------------------------------------- along the way


@pytest.mark.parametrize("batch", [16, 60])
def test_synaptic_intelligence_along_a_training(batch: int) -> None:
    """omega += sum over steps of -g * (theta_after - theta_before), / ((theta_end - theta_start)^2 + 0.01).

    Gradients are computed anew in float64 from the batches the loader shows, with all that is in the loss.
    """
    lam, streams = 30.0, [hand_stream([47, 35], seed=4)]
    hand = Hand(DigitsLearner(WIDTH), 1, (2, 2))
    method = Method(si(), (StabilityProtection(lam, factor=1.0),))
    training = Training(epochs=4, batch=batch, rate=0.02, patience=2)
    trainer = make_trainer(method, streams, training, backbone=plain_mlp(WIDTH))
    start = trainer.theta[0].double()
    importance, anchor = torch.zeros(2, hand.protected, dtype=torch.float64)
    anchor = start[: hand.protected].clone()
    path = torch.zeros(hand.protected, dtype=torch.float64)
    step = trainer.step

    def watched() -> None:
        nonlocal path
        at, before = trainer.position, trainer.theta[0].double()
        index = trainer.engine.loader.index[0, trainer.engine.loader.step][0][
            trainer.engine.loader.valid[0, trainer.engine.loader.step][0] > 0
        ]
        split, task = streams[0].tasks[at.phase].train, at.phase
        where = [(split.index == i).nonzero().item() for i in index]
        x, y = normalised(split, streams[0])[where], split.labels[where]
        row = before.clone().requires_grad_()
        loss = F.cross_entropy(hand.logits(row, x, task)[0], y)
        if at.phase > 0:
            loss = loss + lam * (importance * (row[: hand.protected] - anchor) ** 2).sum()
        g = torch.autograd.grad(loss, row)[0][: hand.protected]
        step()
        path -= g * (trainer.theta[0].double() - before)[: hand.protected]

    watched.__name__ = "step"
    trainer.step = watched  # type: ignore[method-assign]
    finish = trainer.finish_phase

    def finished() -> None:
        nonlocal importance, anchor, path
        finish()
        end = trainer.theta[0].double()[: hand.protected]
        importance = importance + path / ((end - anchor) ** 2 + 0.01)
        anchor, path = end, torch.zeros_like(path)
        torch.testing.assert_close(
            trainer.importance[0].double(), importance, rtol=1e-3, atol=1e-4 * float(importance.abs().max())
        )
        assert torch.equal(trainer.anchor[0].double(), anchor)

    trainer.finish_phase = finished  # type: ignore[method-assign]
    trainer.run()
    assert importance.count_nonzero() > len(importance) / 4


# ---------------------------------------------------------------------- over tasks


def test_running_average() -> None:
    """F <- (F_t + t F) / (t + 1) with t the number of tasks before: in the end the mean of all."""
    tasks = [torch.tensor([3.0, 0.0]), torch.tensor([5.0, 6.0]), torch.tensor([1.0, 3.0])]
    F_ = torch.zeros(2)
    for t, new in enumerate(tasks):
        F_ = accumulated(F_, new, t, "average")
    torch.testing.assert_close(F_, torch.tensor([(3 + 5 + 1) / 3, (0 + 6 + 3) / 3]))


def test_plain_sum() -> None:
    F_ = torch.tensor([2.0])
    for t in range(3):
        F_ = accumulated(F_, torch.tensor([float(t + 1)]), t, "sum")
    assert F_.tolist() == [2.0 + 1 + 2 + 3]


def test_unknown_accumulation_is_refused() -> None:
    with pytest.raises(ConfigError, match="often"):
        accumulated(torch.zeros(1), torch.zeros(1), 0, "often")  # type: ignore[arg-type]


def test_published_defaults() -> None:
    assert (fisher_published().accumulate, fisher_exact().accumulate) == ("average", "sum")
    assert (mas().accumulate, si().accumulate, si().damping) == ("sum", "sum", 0.01)


@pytest.mark.parametrize(
    ("importance", "of"), [(fisher_core50(), "mean cross-entropy"), (mas_core50(), "norms")], ids=["fisher", "mas"]
)
def test_core50_importances_by_hand(importance: GradientImportance, of: str) -> None:
    """32 |g_b|^2 / N with batches of 32, g_b the gradient of their mean loss or of their summed norms, no dropout."""
    hand = Hand(DigitsLearner(WIDTH), 1, (2, 2))
    trainer, ours = measured(importance, STREAMS, 1, digits_mlp(WIDTH))
    for run, stream in enumerate(STREAMS):
        split, row = stream.tasks[0].train, trainer.theta[run].double()
        x, y, N = normalised(split, stream), split.labels, len(split)
        batches = [slice(start, start + 32) for start in range(0, N, 32)]
        assert_close(ours[run], sum(32 * gradient(hand, row, of, x[b], y[b], None) ** 2 / N for b in batches))


@pytest.mark.parametrize("K", [1, 3])
def test_large_mas_is_64_times_mas_with_its_dropout(K: int) -> None:
    plain, large = (measured(form(), STREAMS, K, digits_mlp(WIDTH))[1] for form in (mas, mas_large))
    torch.testing.assert_close(large, 64 * plain)


def test_how_importances_are_accumulated_unless_told_otherwise() -> None:
    averaged = (fisher_published, fisher_large, fisher_core50, mas_core50)
    assert {form().accumulate for form in averaged} == {"average"}
    assert {form().accumulate for form in (fisher_exact, mas, mas_large)} == {"sum"}


def test_the_pull_to_the_task_before_is_no_part_of_a_large_importance() -> None:
    """The gradient that is squared is that of the whole loss; but the anchor has come to the weights by then."""
    stream = hand_stream([47, 35], seed=5, noise=1000)
    protected = Method(fisher_large("last"), (StabilityProtection(1e-2),))
    trainer = make_trainer(protected, [stream], Training(epochs=1, batch=16, rate=0.01), backbone=plain_mlp(WIDTH))
    trainer.run()
    hand, split = Hand(DigitsLearner(WIDTH), 1, (2, 2)), stream.tasks[1].train
    x, N, total = normalised(split, stream), len(split), torch.zeros(trainer.importance.shape[1], dtype=torch.float64)
    for start in range(0, N, 20):
        leaf = trainer.theta[0].double().requires_grad_()
        loss = F.cross_entropy(hand.logits(leaf, x[start : start + 20], 1)[0], split.labels[start : start + 20])
        total += 64**2 / N * torch.autograd.grad(loss, leaf)[0][: hand.protected] ** 2
    assert_close(trainer.importance[0].double(), total)
