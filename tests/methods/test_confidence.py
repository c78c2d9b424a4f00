"""CPR: minus the mean entropy of predictions, against numbers worked out by hand and properties of entropy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.errors import ConfigError
from kenyon.methods.penalties.weights import Confidence, Predictions
from kenyon.models.heads import NO_CLASS
from kenyon.training import Trainer, Training
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import method


def said(logits: Tensor, weight: Tensor) -> Tensor:
    return Confidence(1.0).value(Predictions(logits.log_softmax(-1), None, weight, {}, first_task=True))


def test_hand_worked() -> None:
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]], dtype=torch.float64)
    weight = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)  # the third is padding
    entropies = (math.log(2), -0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    assert float(said(p.log(), weight)) == pytest.approx(-sum(entropies) / 2)


def test_its_slope_pushes_the_sure_to_be_less_sure() -> None:
    """d(-H)/dz_c = p_c (log p_c + H), by the rules of the softmax."""
    z = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(said(z, torch.ones(1, dtype=torch.float64)), z)
    p = z.detach().softmax(1)
    entropy = -(p * p.log()).sum()
    torch.testing.assert_close(slope, p * (p.log() + entropy))
    assert slope[0, 0] > 0  # going down, the largest logit falls


@given(
    logits=st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=1, max_size=5),
    shift=st.floats(-5, 5),
)
@settings(max_examples=60, deadline=None)
def test_it_lies_between_that_of_a_sure_and_that_of_a_uniform_prediction(
    logits: list[list[float]], shift: float
) -> None:
    z = torch.tensor(logits, dtype=torch.float64)
    weight = torch.full((len(z),), 1 / len(z), dtype=torch.float64)
    value = said(z, weight)
    assert -math.log(4) - 1e-9 <= float(value) <= 1e-9
    torch.testing.assert_close(said(z + shift, weight), value)  # logits count up to a constant
    runs = said(torch.stack([z, z.flip(-1)]), torch.stack([weight, weight]))  # a leading run axis
    torch.testing.assert_close(runs, torch.stack([value, value]))


def test_classes_that_are_not_there_count_nothing() -> None:
    z = torch.tensor([[1.0, -2.0, NO_CLASS]], requires_grad=True)
    value = said(z, torch.ones(1))
    torch.testing.assert_close(value, said(z[:, :2].detach(), torch.ones(1)))
    (slope,) = torch.autograd.grad(value, z)
    assert torch.isfinite(slope).all() and float(slope[0, 2]) == 0


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_impossible_strengths_are_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="lambda_cpr"):
        Confidence(bad)


def test_it_counts_in_the_validation_loss() -> None:
    stream, strength = hand_stream([47, 35], seed=5, held_out=13, noise=1000), 1.7
    training = Training(epochs=2, batch=16, rate=0.01)
    trainer = make_trainer(method("cpr-ewc", lambda_cpr=strength), [stream], training, backbone=plain_mlp(5))
    seen: list[tuple[float, float]] = []

    def watch(now: Trainer) -> bool:
        if (now.position.phase, now.position.epoch) == (0, 1):
            split = stream.tasks[0].validation
            logits = Hand(DigitsLearner(5), 1, (2, 2)).logits(now.theta[0].double(), normalised(split, stream), 0)[0]
            log_p = logits.log_softmax(1)
            entropy = -(log_p.exp() * log_p).sum(1).mean()
            expected = F.nll_loss(log_p, split.labels) - strength * entropy
            seen.append((float(now.validation_loss[0]), float(expected)))
        return False

    trainer.run(watch)
    [(ours, expected)] = seen
    assert ours == pytest.approx(expected, rel=1e-4)
