"""A learner for every task: each learned alone, and the same ever after."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kenyon.data import Stream
from kenyon.training import Trainer, Training
from kenyon.training.evaluation import member_seed
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised
from tests.training.fleets import SHORT, assert_same, digit_streams, method, trained


def accuracy(hand: Hand, row: torch.Tensor, stream: Stream, task: int) -> float:
    split = stream.tasks[task].test
    together, _ = hand.logits(row.double(), normalised(split, stream), task)
    return 100 * float((together.argmax(1) == split.labels).double().mean())


def test_every_column_is_that_of_its_own_learner() -> None:
    """Untrained above the diagonal, and constant from it on."""
    streams = digit_streams([2, 7], tasks=3)
    trainer = make_trainer(method("discrete"), streams, SHORT)
    learned = trainer.discrete
    assert learned is not None
    first = learned.learners.clone()  # (R, T, P)
    trainer.run()
    hand = Hand(DigitsLearner(4), 1, (2, 2, 2))
    for run, stream in enumerate(streams):
        matrix = [record["accuracy"][run] for record in trainer.position.records]
        for task in range(3):
            before = accuracy(hand, first[run, task], stream, task)
            after = accuracy(hand, learned.learners[run, task], stream, task)
            column = [row[task] for row in matrix]
            assert column == pytest.approx([before] * task + [after] * (3 - task), abs=1e-3)
    # Learners differ from each other from the start on, and each was trained.
    assert len({tuple(row[:20].tolist()) for row in first.flatten(0, 1)}) == 6
    assert (learned.learners != first).flatten(2).any(2).all()


def test_a_learner_learns_its_task_as_a_network_that_knows_nothing_else() -> None:
    stream = hand_stream([40, 30, 50], seed=4)
    trainer = make_trainer(method("discrete"), [stream], Training(epochs=3, batch=16, rate=5e-3))
    trainer.run()
    assert trainer.discrete is not None
    # The first is `finetune` on the first task alone.
    alone = trained("finetune", [replace(stream, tasks=stream.tasks[:1])], Training(epochs=3, batch=16, rate=5e-3))
    mine = trainer.net.layout.views(trainer.discrete.learners[0, 0])
    for name, view in alone.net.layout.views(alone.theta[0]).items():
        assert torch.equal(mine[name][:1] if name.startswith("head.") else mine[name], view), name
    # Another begins with its own first weights, and is not what another task left.
    begun = trainer.net.initial([member_seed(4, 2)])[0]
    seen: list[torch.Tensor] = []

    def watch(t: Trainer) -> bool:
        if (t.position.phase, t.position.epoch) == (2, 1):
            seen.append(t.theta[0].clone())
        return False

    again = make_trainer(method("discrete"), [stream], Training(epochs=3, batch=16, rate=5e-3))
    again.run(watch)
    steps = 3 * 5e-3 * 4  # batches x rate, with room for Adam
    assert float((seen[0] - begun).abs().max()) < steps


@pytest.mark.parametrize("name", ["discrete", "random-init"])
def test_momentum_does_not_go_on_where_weights_do_not(name: str) -> None:
    """Even in a regime whose optimiser carries it from task to task."""
    carries = Training(epochs=2, batch=16, rate=1e-2, optimiser="sgd", schedule="step", validation=0.0, carry=True)
    ends = [
        trained(name, [hand_stream([40, 30], seed=4)], training).theta
        for training in (carries, replace(carries, carry=False))
    ]
    assert torch.equal(*ends)


def test_runs_together_equal_runs_alone() -> None:
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(([90, 40], [33, 70], [64, 5]))]
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    together = trained("discrete", streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained("discrete", [stream], training))


def test_weights_are_those_of_all_learners_with_their_own_heads() -> None:
    trainer = trained("discrete", [hand_stream([20, 20, 20], seed=1)])
    assert trainer.discrete is not None
    weights = trainer.discrete.weights(0)
    assert weights["dense1.weight"].shape == (3, 4, 64) and weights["head.weight"].shape == (3, 2, 128)
    assert sum(w.numel() for w in weights.values()) == trainer.parameter_count
    for task in range(3):
        views = trainer.net.layout.views(trainer.discrete.learners[0, task])
        assert torch.equal(weights["dense1.weight"][task], views["dense1.weight"][0])
        assert torch.equal(weights["head.weight"][task], views["head.weight"][task])
