"""The expanded network of AF-2 beside the main one: what it is measured by, and what of it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kenyon.methods import find_method
from kenyon.methods.active_forgetting import ExpandedNetwork
from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.checkpoint import load_state, save_state
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import assert_same, method
from tests.training.test_statistics import fleet_of

SGD = Training(epochs=2, batch=16, rate=0.005, optimiser="sgd", schedule="step", validation=0.0)


@pytest.mark.parametrize(
    ("name", "option", "value", "measured"),
    [
        ("ewc-af2", "fisher", "published", "published"),
        ("ewc-af2", "fisher", "exact", "published"),
        ("ewc-af2", "fisher", "large", "large"),
        ("ewc-af2", "fisher", "core50", "core50"),
        ("mas-af2", "omega", "large", "large"),
        ("mas-af2", "omega", "core50", "core50"),
    ],
)
def test_it_is_weighed_in_the_scale_of_the_benchmark(name: str, option: str, value: str, measured: str) -> None:
    made = find_method(name)({"lambda_sp": 1.0, "lambda_af": 1.0, option: value})
    [mechanism] = made.mechanisms
    assert isinstance(mechanism, ExpandedNetwork) and mechanism.importance.name == f"fisher_{measured}"


def test_its_large_importance_has_no_penalties() -> None:
    """They pull the main network."""
    stream = hand_stream([47, 35], seed=5, noise=1000)
    pulled = method("ewc-af2", fisher="large", lambda_sp=0.1, lambda_af=0.1)
    trainer = make_trainer(pulled, [stream], SGD, backbone=plain_mlp(5))
    trainer.run()
    hand, split = Hand(DigitsLearner(5), 1, (2, 2)), stream.tasks[1].train
    x, N, total = normalised(split, stream), len(split), torch.zeros(hand.protected, dtype=torch.float64)
    for start in range(0, N, 20):
        leaf = trainer.tensors()["expanded"][0].double().requires_grad_()
        loss = F.cross_entropy(hand.logits(leaf, x[start : start + 20], 1)[0], split.labels[start : start + 20])
        total += 64**2 / N * torch.autograd.grad(loss, leaf)[0][: hand.protected] ** 2
    found = trainer.tensors()["expanded_importance"][0].double()
    torch.testing.assert_close(found, total, rtol=1e-3, atol=1e-5 * float(total.max()))


def moments(trainer: Trainer, name: str) -> list[tuple[float, float]]:
    """The largest of what its optimiser keeps, before and after every beginning of a task."""
    [hook] = trainer.mechanisms
    seen, begin = [], hook.start_task

    def begun() -> None:
        before = float(trainer.tensors()[f"expanded_{name}"].abs().max())
        begin()
        seen.append((before, float(trainer.tensors()[f"expanded_{name}"].abs().max())))

    hook.start_task = begun  # type: ignore[method-assign]
    trainer.run()
    return seen


@pytest.mark.parametrize("carry", [True, False])
def test_its_momentum_goes_on_where_the_networks_does(carry: bool) -> None:
    regime = replace(SGD, carry=carry)
    trainer = make_trainer(method("ewc-af2"), [hand_stream([40, 30], seed=4)], regime, backbone=plain_mlp(5))
    _, (before, after) = moments(trainer, "sgd.velocity")
    assert before > 0 and (after > 0) == carry


def test_its_adam_is_new_for_every_task() -> None:
    trainer = make_trainer(method("ewc-af2"), [hand_stream([40, 30])], Training(epochs=2, batch=16, patience=9))
    assert moments(trainer, "adam.steps") == [(0.0, 0.0), (6.0, 0.0)]


@pytest.mark.parametrize("validated", [True, False])
def test_whether_its_pull_counts_in_the_validation_loss(validated: bool) -> None:
    strong = method("ewc-af2", lambda_sp=0.0, lambda_af=1e9, af2_validated=validated)
    stream = hand_stream([47, 35], seed=5, noise=1000)
    trainer = make_trainer(strong, [stream], Training(epochs=1, batch=16, rate=1e-3), backbone=plain_mlp(5))
    seen: list[tuple[float, float]] = []

    def watch(now: Trainer) -> bool:
        if (now.position.phase, now.position.epoch) == (1, 1):
            value = now.method.parameter_penalties[1].value(now.penalties._weights())
            seen.append((float(now.validation_loss), float(value)))
        return False

    trainer.run(watch)
    [(loss, pull)] = seen
    assert pull > 10 and (loss > pull) == validated


def test_statistics_go_on_to_the_next_task() -> None:
    trainer = fleet_of("ewc-af2", [hand_stream([50, 30])])
    [hook] = trainer.mechanisms
    seen, finish = [], hook.finish_task

    def finished() -> None:
        finish()
        if trainer.position.phase == 0:
            views = (
                trainer.net.layout.view(trainer.tensors()["expanded"], n) for n in trainer.net.statistics.initial
            )
            seen.extend(torch.equal(view[:, 1], view[:, 0]) for view in views)

    hook.finish_task = finished  # type: ignore[method-assign]
    trainer.run()
    assert seen and all(seen)


def test_one_that_has_begun_after_waiting_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Stopped in the first task, when the rate has fallen."""
    training = Training(epochs=8, batch=32, rate=0.02, patience=1)
    streams = [hand_stream([40, 30], seed=seed, held_out=12, noise=1000) for seed in range(2)]
    whole, begun, again = (make_trainer(method("ewc-af2", af2_first="waits"), streams, training) for _ in range(3))
    whole.run()

    def stop(now: Trainer) -> bool:
        at = now.position
        return at.phase == 0 and at.epoch < 7 and not now.tensors()["expanded_waiting"].any()

    with pytest.raises(Interrupted):
        begun.run(stop)
    save_state(tmp_path / "state", begun.tensors(), begun.position, "me")
    again.position = load_state(tmp_path / "state", again.tensors(), "me")
    again.run()
    for run in range(2):
        assert_same(again, run, whole, run)
