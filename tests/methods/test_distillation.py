"""Learning without Forgetting against its equation: value, every gradient of a training, validation, properties."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.errors import ConfigError
from kenyon.methods import find_method
from kenyon.methods.distillation import Distillation
from kenyon.methods.penalties import Predictions
from kenyon.training import Trainer, Training
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp
from tests.training.test_shared_head import domains, mlp

WIDTH, T = 5, 2.0
TRAINING = Training(epochs=2, batch=16, rate=0.02, patience=9)


def slow_value(earlier: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> float:
    """T^2 sum over heads and samples of w * sum over classes of p (log p - log q), number by number."""
    total = 0.0
    for head in range(len(earlier)):
        for sample in range(len(weight)):
            p = (teacher[head, sample] / temperature).softmax(-1)
            q = (earlier[head, sample] / temperature).softmax(-1)
            for a, b in zip(p.tolist(), q.tolist(), strict=True):
                total += float(weight[sample]) * a * float(torch.tensor(a).log() - torch.tensor(b).log())
    return temperature**2 * total


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_value_equals_the_equation(temperature: float) -> None:
    g = torch.Generator().manual_seed(0)
    earlier, teacher = (torch.randn(3, 4, 5, generator=g, dtype=torch.float64) for _ in range(2))
    weight = torch.tensor([0.4, 0.4, 0.2, 0.0], dtype=torch.float64)
    log_p = torch.zeros(4, 5, dtype=torch.float64)
    seen = Predictions(log_p, None, weight, {}, first_task=False, earlier=earlier, teacher=teacher)
    value = float(Distillation(1.0, temperature).value(seen))
    assert value == pytest.approx(slow_value(earlier, teacher, weight, temperature), rel=1e-6) and value > 0
    same = Predictions(log_p, None, weight, {}, first_task=False, earlier=teacher, teacher=teacher)
    assert float(Distillation(1.0, temperature).value(same)) == pytest.approx(0, abs=1e-12)
    assert float(Distillation(1.0).value(Predictions(log_p, None, weight, {}, first_task=True))) == 0


def distilled(hand: Hand, row: Tensor, teacher: Tensor, x: Tensor, task: int) -> Tensor:
    """T^2 times the mean KL between teacher and network, summed over the heads of earlier tasks."""
    total = x.new_zeros(())
    for head in range(task):
        p = (hand.logits(teacher, x, head)[0] / T).softmax(-1)
        log_q = (hand.logits(row, x, head)[0] / T).log_softmax(-1)
        total = total + T**2 * F.kl_div(log_q, p, reduction="batchmean")
    return total


def test_gradients_and_validation_of_a_training() -> None:
    strength, streams = 0.7, [hand_stream([47, 35, 40], seed=4)]
    hand = Hand(DigitsLearner(WIDTH), 1, (2, 2, 2))
    trainer = make_trainer(find_method("lwf")({"lambda_kd": strength}), streams, TRAINING, backbone=plain_mlp(WIDTH))
    step, seen = trainer.step, 0
    teacher = trainer.theta[0].double()

    def watched() -> None:
        nonlocal teacher, seen
        at, loader = trainer.position, trainer.engine.loader
        if at.epoch == 0 and int(loader.step) == 0:
            teacher = trainer.theta[0].double()  # the network that the task found
        index = loader.index[0, loader.step][0][loader.valid[0, loader.step][0] > 0]
        split, task = streams[0].tasks[at.phase].train, at.phase
        where = [(split.index == i).nonzero().item() for i in index]
        x, y = normalised(split, streams[0])[where], split.labels[where]
        row = trainer.theta[0].double().requires_grad_()
        loss = F.cross_entropy(hand.logits(row, x, task)[0], y) + strength * distilled(hand, row, teacher, x, task)
        expected = torch.autograd.grad(loss, row)[0]
        step()
        assert float(trainer.engine.loss[0]) == pytest.approx(float(loss.detach()), rel=1e-4)
        torch.testing.assert_close(trainer.gradient[0].double(), expected, rtol=1e-3, atol=1e-5)
        seen += task > 0

    def watch(now: Trainer) -> bool:
        at = now.position
        if at.epoch:
            split = streams[0].tasks[at.phase].validation
            x, row = normalised(split, streams[0]), now.theta[0].double()
            loss = F.cross_entropy(hand.logits(row, x, at.phase)[0], split.labels)
            loss = loss + strength * distilled(hand, row, teacher, x, at.phase)
            assert float(now.validation_loss) == pytest.approx(float(loss), rel=1e-4, abs=1e-6)
        return False

    watched.__name__ = "step"
    trainer.step = watched  # type: ignore[method-assign]
    trainer.run(watch)
    assert seen >= 10


@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("backbone", [None, "convolutional"])
def test_old_predictions_stay_with_its_strength(learners: int, backbone: str | None) -> None:
    """Distilled, the old head's predictions on the new data are nearer to those of the teacher."""
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 12), nn.ReLU()]
    far = []
    for strength in (0.0, 5.0):
        stream = hand_stream([60, 60], seed=2)
        method = find_method("lwf")({"lambda_kd": strength})
        module = None if backbone is None else nn.Sequential(*layers)
        training = Training(epochs=8, batch=16, rate=2e-3, patience=9)
        trainer = make_trainer(method, [stream], training, backbone=module, learners=learners)
        trainer.run()
        assert trainer.teacher is not None
        x = normalised(stream.tasks[1].train, stream).float()
        old = torch.tensor([0])
        now, then = (
            trainer.net.forward(rows[0], x, old).logits.softmax(-1) for rows in (trainer.theta, trainer.teacher)
        )
        far.append(float((now - then).abs().mean()))
    assert far[0] > 1.5 * far[1]


def test_one_network_for_domains_is_its_own_teacher() -> None:
    """Tasks that share a head distill that head."""
    trainer = make_trainer(find_method("lwf")({"lambda_kd": 5.0}), [domains()], TRAINING, backbone=mlp())
    trainer.run()
    assert trainer.penalties.earlier is not None and trainer.penalties.earlier.tolist() == [0]


def test_odd_values_are_refused() -> None:
    for name, value in (("lambda_kd", -1.0), ("temperature", 0.0)):
        with pytest.raises(ConfigError, match=name):
            find_method("lwf")({name: value})
