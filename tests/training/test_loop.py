"""The training loop: what decides a run, and what must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.methods import METHODS, Method
from kenyon.methods.importance import fisher_published
from kenyon.methods.penalties.weights import StabilityProtection
from kenyon.random import Purpose, key, normal
from kenyon.training import Trainer, Training
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised
from tests.training.fleets import SHORT, digit_streams, method, trained

# ---------------------------------------------------------------------- what is learned beside the weights


def learned_after(t_method: Method, seeds: Sequence[int], K: int) -> tuple[Trainer, dict[tuple[int, str], Tensor]]:
    """Where the adaptive weights were at the end of each task's last epoch."""
    trainer = make_trainer(t_method, digit_streams(seeds), replace(SHORT, epochs=3), learners=K)
    seen: dict[tuple[int, str], Tensor] = {}

    def watch(t: Trainer) -> bool:
        if t.position.epoch == 3:
            seen.update({(t.position.phase, n): t.net.layout.view(t.theta, n).clone() for n in ("af1", "afs")})
        return False

    trainer.run(watch)
    return trainer, seen


def drawn(trainer: Trainer, phase: int, name: str) -> Tensor:
    number, shape = list(trainer.net.learned).index(name), trainer.net.learned[name]
    return torch.stack([normal(key(s, Purpose.LEARNED, phase, number), shape) for s in trainer.fleet.seeds])


@pytest.mark.parametrize("form", ["published", "paper"])
def test_adaptive_weights_move_from_the_second_task_on(form: str) -> None:
    """Had they no gradient, they would stay where they were drawn: the fault of the published RL code."""
    trainer, seen = learned_after(method("caf-ewc", afs_form=form), [0, 4, 5], 5)
    for name in ("af1", "afs"):
        assert torch.equal(seen[0, name], drawn(trainer, 0, name))  # on the first task every weight is 1
        moved = (seen[1, name] - drawn(trainer, 1, name)).abs().amax(2) > 1e-4  # (R, rows)
        if (form, name) != ("published", "afs"):
            assert moved.all()
        else:
            # softmax(100 b) is all on the largest b of a row, without gradient, unless the two largest are close.
            two = drawn(trainer, 1, "afs").topk(2, dim=2).values
            close = two[..., 0] - two[..., 1] < 0.1
            assert close.sum() >= 2
            assert moved[close].all()


# ---------------------------------------------------------------------- tasks and schedules


@pytest.mark.parametrize("name", ["ewc", "mas", "si", "ewc-af1", "ewc-af2"])
def test_penalties_do_not_act_on_the_first_task(name: str) -> None:
    """After one task all single learners are where plain training is; after the second they are not."""
    stream, plain, other = digit_streams([2]), [], []
    for which, keep in (("finetune", plain), (name, other)):
        trainer = make_trainer(method(which), stream, SHORT)
        trainer.run(lambda t, keep=keep: keep.append(t.theta[0].clone()) or False)
    assert len(plain) == len(other) == 6  # two epochs and an end, twice
    for a, b in zip(plain[:3], other[:3], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(plain[-1], other[-1])


def test_multi_learner_penalties_do_not_act_on_the_first_task() -> None:
    """AF-S does: so gamma is 0 here."""
    stream, rows = digit_streams([2], tasks=1), []
    for name, hyper in (("mcl-ewc", {}), ("caf-ewc", {"gamma": 0.0})):
        trainer = make_trainer(method(name, **hyper), stream, SHORT)
        trainer.run()
        rows.append(trainer.theta[0, : trainer.net.layout.segments["head.bias"].stop])
    assert torch.equal(*rows)
    with_divergence = trained("caf-ewc", stream)
    assert not torch.equal(with_divergence.theta[0, : len(rows[0])], rows[0])


def test_random_init_learns_every_task_from_the_first_weights() -> None:
    trainer = make_trainer(method("random-init"), digit_streams([0, 1], tasks=3), SHORT)
    first = trainer.theta.clone()
    begin, begins = trainer.start_phase, []

    def begun() -> None:
        begin()
        begins.append(trainer.theta.clone())

    trainer.start_phase = begun  # type: ignore[method-assign]
    trainer.run()
    assert len(begins) == 3
    assert all(torch.equal(start, first) for start in begins)
    alone = make_trainer(method("finetune"), digit_streams([0, 1], tasks=1), SHORT)
    alone.run()  # the first task is learned as by anyone
    for run in range(2):
        assert trainer.position.records[0]["accuracy"][run][0] == alone.position.records[0]["accuracy"][run][0]


def test_joint_has_one_phase_and_trains_every_head() -> None:
    trainer = make_trainer(method("joint"), digit_streams([0, 1], tasks=3), replace(SHORT, epochs=4))
    first = trainer.theta.clone()
    assert trainer.phases == [(0, 1, 2)]
    trainer.run()
    assert len(trainer.position.records) == 1
    for name in ("head.weight", "head.bias"):
        change = trainer.net.layout.view(trainer.theta - first, name)
        for task in range(3):
            assert change[:, task].flatten(1).any(1).all()
    accuracy = torch.tensor(trainer.position.records[0]["accuracy"])
    assert accuracy.shape == (2, 3) and float(accuracy.mean()) > 70


def test_epochs_of_larger_tasks_count_for_more() -> None:
    """6 steps an epoch in the first task, 2 in the second: 1.5 and 0.5 epochs."""
    (stream,) = digit_streams([0])
    cut = [
        replace(task, train=replace(task.train, index=task.train.index[:size], labels=task.train.labels[:size]))
        for task, size in zip(stream.tasks, (48, 16), strict=True)
    ]
    trainer = make_trainer(method("finetune"), [replace(stream, tasks=tuple(cut))], replace(SHORT, epochs=3, batch=8))
    done = [trainer.done]
    trainer.run(lambda t: bool(done.append(t.done)))
    assert done == [0, 1.5, 3, 4.5, 4.5, 5, 5.5, 6, 6]  # after every epoch, and once more after every task


def test_only_the_head_of_the_task_is_trained() -> None:
    trainer = make_trainer(method("caf-ewc"), digit_streams([0]), SHORT)
    rows = [trainer.theta.clone()]
    trainer.run(lambda t: (rows.append(t.theta.clone()) if t.position.epoch == 0 else None) or False)
    for phase in (0, 1):
        change = trainer.net.layout.view(rows[phase + 1] - rows[phase], "head.weight")[0]
        assert change[phase].any() and not change[1 - phase].any()


def test_accuracies_are_those_of_the_weights() -> None:
    """Of all tasks after every task, together and alone, by hand."""
    streams = digit_streams([6], tasks=2)
    trainer = make_trainer(method("mcl-ewc"), streams, SHORT)
    hand = Hand(DigitsLearner(4), 3, (2, 2))
    rows: list[Tensor] = []
    trainer.run(lambda t: (rows.append(t.theta[0].double()) if t.position.epoch == 0 else None) or False)
    for row, record in zip(rows, trainer.position.records, strict=True):
        for task in range(2):
            split = streams[0].tasks[task].test
            together, own = hand.logits(row, normalised(split, streams[0]), task)
            right = 100 * float((together.argmax(1) == split.labels).double().mean())
            assert record["accuracy"][0][task] == pytest.approx(right, abs=1e-3)
            for k in range(3):
                alone = 100 * float((own[k].argmax(1) == split.labels).double().mean())
                assert record["own_accuracy"][0][task][k] == pytest.approx(alone, abs=1e-3)
            p = own.softmax(2)
            pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
            cos = sum(F.cosine_similarity(p[i], p[j], dim=1).mean() for i, j in pairs) / 6
            euc = sum((p[i] - p[j]).norm(dim=1).mean() for i, j in pairs) / 6
            assert record["cosine"][0][task] == pytest.approx(1 - float(cos), abs=1e-4)
            assert record["euclidean"][0][task] == pytest.approx(float(euc), abs=1e-4)


def test_it_learns() -> None:
    trainer = trained("finetune", digit_streams([0, 1]), Training(epochs=10, batch=32, rate=1e-2), width=16)
    assert float(torch.tensor(trainer.position.records[0]["accuracy"])[:, 0].min()) > 95


# ---------------------------------------------------------------------- momentum that goes on


@pytest.mark.parametrize("name", ["finetune", "ewc", "caf-ewc"])
def test_a_head_stays_where_its_task_left_it(name: str) -> None:
    """Also where momentum goes on: the backbone coasts into the next task, the head of the last one does not."""
    training = replace(SHORT, optimiser="sgd", schedule="step", validation=0.0, carry=True, penalties_from=1)
    trainer = make_trainer(method(name), digit_streams([0, 1], tasks=3), training)
    left: list[dict[str, Tensor]] = []
    momentum: list[float] = []

    def watch(t: Trainer) -> bool:
        if t.position.epoch == 0:  # a task has ended
            left.append({n: t.net.layout.view(t.theta, n).clone() for n in t.net.head_names})
            momentum.append(float(t.optimizer.tensors()["sgd.velocity"][:, : t.net.layout.protected].abs().max()))
        return False

    trainer.run(watch)
    assert len(left) == 3 and min(momentum) > 0
    for task, then in enumerate(left):
        for part, value in then.items():
            assert torch.equal(value[:, : task + 1], left[-1][part][:, : task + 1])


def test_momentum_of_a_head_that_tasks_share_goes_on() -> None:
    stream = replace(hand_stream([40, 40], held_out=0), heads="shared")
    training = replace(SHORT, optimiser="sgd", schedule="step", validation=0.0, carry=True)
    trainer = make_trainer(method("finetune"), [stream], training)
    before: list[Tensor] = []

    def watch(t: Trainer) -> bool:
        if t.position.epoch == 0 and t.position.phase == 1:
            before.append(t.optimizer.tensors()["sgd.velocity"].clone())
            t.start_phase()
            before.append(t.optimizer.tensors()["sgd.velocity"].clone())
        return False

    trainer.run(watch)
    assert torch.equal(*before) and bool(trainer.net.layout.view(before[0], "head.weight").any())


def test_the_importance_of_another_network_is_its_own() -> None:
    """Asked for after that of the network that learns, by the same definition and for the same purpose."""
    importance = fisher_published()

    def standing() -> Trainer:
        trainer = make_trainer(method("ewc"), digit_streams([0, 1]), SHORT)
        trainer.enter_phase()
        return trainer

    alone, after = standing(), standing()
    other = alone.theta.roll(1, 1)
    alone.measure(importance, other, Purpose.IMPORTANCE)
    after.measure(importance, after.theta, Purpose.IMPORTANCE)
    own = after.estimate.clone()
    after.measure(importance, other, Purpose.IMPORTANCE)
    assert torch.equal(after.estimate, alone.estimate) and not torch.equal(after.estimate, own)
    # By another definition of the same name, too.
    after.measure(replace(importance, numerator=2 * importance.numerator), after.theta, Purpose.IMPORTANCE)
    torch.testing.assert_close(after.estimate, 2 * own)


def test_work_of_two_objects_is_not_taken_for_one() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def step(self) -> None:
            self.calls += 1

    trainer, one, other = make_trainer(method("ewc"), digit_streams([0]), SHORT), Counter(), Counter()
    for counter in (one, one, other):
        trainer.engine.repeat(counter.step)
    assert (one.calls, other.calls) == (2, 1)


def words_of(name: str) -> list[dict[str, str]]:
    """A method of several learners as it is, and with every word that an option of it may have."""
    hints = get_type_hints(METHODS[name].build)
    return [{}, *({option: word} for option, hint in hints.items() for word in get_args(hint) if type(word) is str)]


@pytest.mark.parametrize(
    ("name", "options"), [(name, words) for name in METHODS if METHODS[name].multi for words in words_of(name)]
)
def test_methods_of_several_learners_stay_finite_with_one(name: str, options: dict[str, str]) -> None:
    trainer = make_trainer(method(name, **options), digit_streams([0]), replace(SHORT, epochs=1), learners=1)
    trainer.run()
    assert trainer.position.diverged == [None] and bool(trainer.theta.isfinite().all())


def test_an_engine_stands_at_its_first_phase() -> None:
    """Before a phase is entered, too: what it has is laid out, and nothing appears later."""
    trainer = make_trainer(method("ewc"), digit_streams([0, 1]), SHORT)
    before = set(vars(trainer.engine))
    first = trainer.engine.samples.sizes.clone()
    trainer.enter_phase()
    assert set(vars(trainer.engine)) == before
    assert torch.equal(trainer.engine.samples.sizes, first) and trainer.engine.first == 0


def test_a_validation_loss_that_is_no_number_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(method("finetune"), [hand_stream([40, 30], seed=seed) for seed in range(2)], SHORT)
    held_out = trainer.engine.held_out_loss

    def broken(theta: Tensor, into: Tensor, *more: Any) -> None:
        held_out(theta, into, *more)
        if trainer.position.phase == 1:
            into[1] = torch.inf

    monkeypatch.setattr(trainer.engine, "held_out_loss", broken)
    trainer.run()
    assert trainer.position.diverged == [None, [1, 0]]


@pytest.mark.parametrize("name", ["discrete", "random-init"])
def test_a_run_that_diverges_names_its_task_where_every_task_begins_anew(name: str) -> None:
    trainer = make_trainer(method(name), [hand_stream([40, 30], seed=seed) for seed in range(2)], SHORT)

    def poison(now: Trainer) -> bool:
        if (now.position.phase, now.position.epoch) == (1, 1):
            now.theta[0] = torch.nan
        return False

    trainer.run(poison)
    assert trainer.position.diverged == [[1, 1], None]


def test_where_every_task_begins_anew_none_was_before() -> None:
    again = Method(fisher_published(), (StabilityProtection(1.0),), schedule="restart")
    trainer = make_trainer(again, [hand_stream([40, 30])], Training(epochs=2, batch=16))
    seen = set()

    def watch(now: Trainer) -> bool:
        seen.add((now.tasks_before, now.task, now.penalties.active, now.penalties.first_task))
        return False

    trainer.run(watch)
    assert {now[1:] for now in seen} == {(0, False, True)} and {now[0] for now in seen} >= {0, 1}
