"""The training loop: what decides a run, and what must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.methods import METHODS, Method, find_method
from kenyon.nets import digits_mlp
from kenyon.random import Purpose, key, normal
from kenyon.streams import Source, Stream, find_source
from kenyon.train import Interrupted, Trainer, Training
from kenyon.train.state import load_state, save_state
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp

HYPER = {"lambda_sp": 50.0, "lambda_af": 0.05, "gamma": 0.3}
SHORT = Training(epochs=2, batch=64, rate=5e-3, patience=1)


def method(name: str, **hyper: Any) -> Method:
    spec = find_method(name)
    given = {n: HYPER[n] for n in spec.required} | hyper
    return spec(given)


@cache
def digits() -> Source:
    return find_source("digits").load(None)


def digit_streams(seeds: Sequence[int], tasks: int = 2) -> list[Stream]:
    return [digits().stream(seed, tasks=tasks, validation=0.1) for seed in seeds]


def trained(name: str, streams: Sequence[Stream], training: Training = SHORT, **options: Any) -> Trainer:
    trainer = make_trainer(method(name), streams, training, **options)
    trainer.run()
    return trainer


def assert_same(one: Trainer, run: int, other: Trainer, other_run: int = 0) -> None:
    """To the last bit: everything that is kept of a run, and everything that was found."""
    mine, theirs = one.tensors(), other.tensors()
    assert set(mine) == set(theirs)
    for name in mine:
        assert torch.equal(mine[name][run], theirs[name][other_run]), name
    assert len(one.position.records) == len(other.position.records)
    for a, b in zip(one.position.records, other.position.records, strict=True):
        assert repr({n: v[run] for n, v in a.items()}) == repr({n: v[other_run] for n, v in b.items()})
    assert one.position.diverged[run] == other.position.diverged[other_run]


# ---------------------------------------------------------------------- together and alone


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "caf-ewc", "ewc-af2"])
def test_runs_together_equal_runs_alone(name: str) -> None:
    together = trained(name, digit_streams([3, 8]))
    for run, seed in enumerate([3, 8]):
        assert_same(together, run, trained(name, digit_streams([seed])))
    assert not torch.equal(together.theta[0], together.theta[1])


UNEQUAL = ([90, 40], [33, 70], [64, 5])  # training samples of each task, for each run


@pytest.mark.parametrize("name", ["finetune", "ewc", "si", "mas", "caf-ewc", "ewc-af2", "joint"])
def test_runs_of_unequal_sizes_equal_runs_alone(name: str) -> None:
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(UNEQUAL)]
    together = trained(name, streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained(name, [stream], training))


def test_runs_with_unequal_validation_sets_equal_runs_alone() -> None:
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream([40, 30], seed=s, held_out=n) for s, n in enumerate((3, 11, 40))]
    together = trained("ewc", streams, training)
    for run, stream in enumerate(streams):
        assert_same(together, run, trained("ewc", [stream], training))


def test_strengths_may_differ_between_runs() -> None:
    streams = digit_streams([0, 1])
    both = make_trainer(
        method("caf-ewc", lambda_sp=torch.tensor([5.0, 500.0]), gamma=torch.tensor([0.0, 1.0])), streams, SHORT
    )
    both.run()
    for run, (lam, gamma) in enumerate([(5.0, 0.0), (500.0, 1.0)]):
        alone = make_trainer(method("caf-ewc", lambda_sp=lam, gamma=gamma), streams[run : run + 1], SHORT)
        alone.run()
        assert_same(both, run, alone)


# ---------------------------------------------------------------------- the whole loop, slowly


def slow_training(hand: Hand, first: Tensor, stream: Stream, name: str, training: Training) -> dict[str, Tensor]:
    """The protocol in float64 for one run: every epoch is one batch of all samples, and there is no dropout."""
    Pp, K = hand.protected, hand.K
    lam, af, gamma = (HYPER[n] for n in ("lambda_sp", "lambda_af", "gamma"))
    theta, anchor, importance = first.double().clone(), first[:Pp].double(), torch.zeros(Pp, dtype=torch.float64)
    expanded, fisher_e = theta.clone(), torch.zeros(Pp, dtype=torch.float64)
    af1 = "af1" in name or name.startswith("caf")
    adaptive = name.startswith("caf")

    def ce(row: Tensor, task: int, part: str) -> Tensor:
        split = getattr(stream.tasks[task], part)
        return F.cross_entropy(hand.logits(row, normalised(split, stream), task)[0], split.labels)

    def penalties(row: Tensor, task: int) -> Tensor:
        total = 0.0 * row.sum()
        if task == 0 or name == "finetune":
            return total
        total = total + lam / 2 * (importance * (row[:Pp] - anchor) ** 2).sum() * (2 if name == "si" else 1)
        p = hand.cut(row)
        if af1:
            total = total + af / 2 * (p["head.weight"][task].square().sum() + p["head.bias"][task].square().sum())
            for number, tensor in enumerate(hand.tensors):
                weight = K * torch.softmax(p["af1"][number], 0) if adaptive else torch.ones(K)
                total = total + af / 2 * sum(weight[i] * p[tensor][i].square().sum() for i in range(K))
        if name.endswith("af2"):
            total = total + af / 2 * (fisher_e * (row[:Pp] - expanded[:Pp]) ** 2).sum()
        return total

    def divergence(row: Tensor, task: int) -> Tensor:
        split = stream.tasks[task].train
        p = hand.logits(row, normalised(split, stream), task)[1].softmax(2)
        b = hand.cut(row)["afs"]
        total = 0.0 * row.sum()
        for k in range(K):
            w = K * torch.softmax(100 * b[k], 0) if task > 0 else torch.ones(K)
            for other in range(K):
                if other != k:
                    q = p[other].detach()
                    total = total + w[other] * (q * (q / p[k]).log()).sum(1).mean()
        return gamma * total

    def fisher(row: Tensor, task: int, norm: bool = False) -> Tensor:
        split, total = stream.tasks[task].train, torch.zeros(Pp, dtype=torch.float64)
        x, N = normalised(split, stream), len(split)
        for start in range(0, N, 20):
            leaf = row.clone().requires_grad_()
            logits = hand.logits(leaf, x[start : start + 20], task)[0]
            value = logits.norm(dim=1).sum() if norm else F.cross_entropy(logits, split.labels[start : start + 20])
            g = torch.autograd.grad(value, leaf)[0][:Pp]
            total += g.abs() / N if norm else 20 * g**2 / N
        return total

    def adam(row: Tensor, rate: float) -> tuple[Tensor, torch.optim.Adam]:
        leaf = row.clone().requires_grad_()
        return leaf, torch.optim.Adam([leaf], lr=rate)

    for task in range(len(stream.tasks)):
        parts = hand.cut(theta)
        for number, part in enumerate(n for n in ("af1", "afs") if n in parts):
            parts[part].copy_(normal(key(stream.seed, Purpose.LEARNED, task, number), tuple(parts[part].shape)))
        rate, best_loss, waited, best = training.rate, float("inf"), 0, theta.clone()
        theta, optimiser = adam(theta, rate)
        expanded, optimiser_e = adam(expanded, rate)
        path = torch.zeros(Pp, dtype=torch.float64)
        for _ in range(training.epochs):
            if name.endswith("af2"):
                optimiser_e.zero_grad()
                ce(expanded, task, "train").backward()
                optimiser_e.step()
                fisher_e = fisher(expanded.detach(), task)
                expanded.requires_grad_(False)
            loss = ce(theta, task, "train") + penalties(theta, task)
            if name.startswith("caf"):
                loss = loss + divergence(theta, task)
            before = theta.detach().clone()
            theta.grad = torch.autograd.grad(loss, theta)[0]
            optimiser.step()
            path -= theta.grad[:Pp] * (theta.detach() - before)[:Pp]
            with torch.no_grad():
                validation = float(ce(theta, task, "validation") + penalties(theta, task))
            expanded.requires_grad_()
            if validation < best_loss:
                best_loss, best, waited = validation, theta.detach().clone(), 0
            else:
                waited += 1
                if waited >= training.patience:
                    rate, waited = rate / training.drop, 0
                    theta, optimiser = adam(theta.detach(), rate)
                    expanded, optimiser_e = adam(expanded.detach(), rate)
        theta, expanded = best, expanded.detach()
        if name == "si":
            importance = importance + path / ((theta[:Pp] - anchor) ** 2 + 0.01)
        elif "mas" in name:
            importance = importance + fisher(theta, task, norm=True)
        elif name != "finetune":
            importance = (fisher(theta, task) + task * importance) / (task + 1)
        anchor = theta[:Pp].clone() if name != "finetune" else anchor
    return {"theta": theta, "importance": importance, "anchor": anchor, "expanded": expanded}


@pytest.mark.parametrize(
    "name",
    [
        "finetune",
        "ewc",
        "mas",
        "si",
        "ewc-af1",
        "ewc-af2",
        "mas-af1",
        "mas-af2",
        "mcl-ewc",
        "mcl-mas",
        "caf-ewc",
        "caf-mas",
    ],
)
def test_a_training_equals_the_protocol_done_slowly(name: str) -> None:
    stream = hand_stream([47, 35, 50], seed=5, held_out=13, noise=1000)  # too hard: validation gets worse again
    training = Training(epochs=9, batch=64, rate=0.01, patience=1)
    trainer = make_trainer(method(name), [stream], training, backbone=plain_mlp(5, smooth=True))
    hand = Hand(DigitsLearner(5, smooth=True), trainer.net.learners, (2, 2, 2), learned=trainer.net.learned)
    expected = slow_training(hand, trainer.theta[0].clone(), stream, name, training)
    rates = []
    trainer.run(lambda t: rates.append(float(t.rate[0])) or False)
    for what in ("theta", "anchor", "importance", "expanded"):
        ours = trainer.tensors().get(what)
        if ours is not None:
            scale = float(expected[what].abs().max())
            close = torch.isclose(ours[0].double(), expected[what], rtol=2e-3, atol=2e-4 * scale)
            # Adam makes a step of a gradient that is only rounding: a few numbers may differ, by less than a step.
            assert float(close.double().mean()) > 0.99, what
            torch.testing.assert_close(ours[0].double(), expected[what], rtol=0.05, atol=5e-3 * scale)
    assert min(rates) < 0.004  # the rate did drop in this test


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


# ---------------------------------------------------------------------- validation, rates, best weights


def reference_plateau(
    losses: Sequence[float], rate: float, patience: int, drop: float
) -> list[tuple[float, bool, int]]:
    """(rate, new optimiser, epoch of the best weights) after each epoch."""
    best, where, waited, out = float("inf"), -1, 0, []
    for epoch, loss in enumerate(losses):
        restarted = False
        if loss < best:
            best, where, waited = loss, epoch, 0
        else:
            waited += 1
            if waited == patience:
                rate, waited, restarted = rate / drop, 0, True
        out.append((rate, restarted, where))
    return out


def test_plateaus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs with losses of our making, patience 2, drop 4."""
    losses = torch.tensor(
        [
            [5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.4, 0.3],  # always better: never a drop
            [5.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.5, 3.9],  # 6, 5 not better -> drop; 4 better; 4, 4 not -> drop; 3.9
            [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.5],  # drops after epochs 3, 5 and 7 (counted from 1)
        ]
    )
    training = Training(epochs=8, batch=64, rate=0.008, patience=2, drop=4.0)
    trainer = make_trainer(method("finetune"), [hand_stream([64], seed=s) for s in range(3)], training)
    by_hand = [reference_plateau(row.tolist(), 0.008, 2, 4.0) for row in losses]
    assert [r for r, _, _ in by_hand[1]] == pytest.approx([8e-3, 8e-3, 2e-3, 2e-3, 2e-3, 5e-4, 5e-4, 5e-4])
    assert [r for r, _, _ in by_hand[2]] == pytest.approx([8e-3, 8e-3, 2e-3, 2e-3, 5e-4, 5e-4, 1.25e-4, 1.25e-4])

    def made_up(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
        run = next(turn)
        return losses[run, trainer.position.epoch].expand(len(labels))

    history: list[Tensor] = []
    validate = trainer._validate

    def patched() -> None:
        nonlocal turn
        turn = iter(range(3))
        history.append(trainer.theta.clone())
        with monkeypatch.context() as patch:
            patch.setattr("kenyon.train.loop.F.cross_entropy", made_up)
            validate()

    turn = iter(())
    patched.__name__ = "_validate"
    trainer._validate = patched  # type: ignore[method-assign]

    def watch(t: Trainer) -> bool:
        epoch = t.position.epoch - 1
        if t.position.phase == 0:
            for run in range(3):
                rate, restarted, where = by_hand[run][epoch]
                assert float(t.rate[run]) == pytest.approx(rate)
                assert (float(t.adam.steps[run]) == 0) == restarted
                assert bool(t.adam.first[run].any()) != restarted
                assert torch.equal(t.best[run], history[where][run])
        return False

    trainer.run(watch)
    assert torch.equal(trainer.theta, torch.stack([history[7][0], history[7][1], history[7][2]]))


def test_best_weights_are_restored() -> None:
    training = Training(epochs=6, batch=16, rate=0.03, patience=5)
    stream = hand_stream([40], seed=2, held_out=20, noise=500)  # too hard: validation gets worse again
    trainer = make_trainer(method("finetune"), [stream], training)
    hand, losses, rows = Hand(DigitsLearner(4), 1, (2,)), [], []

    def watch(t: Trainer) -> bool:
        if t.position.phase == 0:
            split = stream.tasks[0].validation
            losses.append(
                float(F.cross_entropy(hand.logits(t.theta[0].double(), normalised(split, stream))[0], split.labels))
            )
            rows.append(t.theta[0].clone())
            assert float(t.best_loss[0]) == pytest.approx(min(losses), rel=1e-4)
        return False

    trainer.run(watch)
    best = losses.index(min(losses))
    assert 0 < best < 5
    assert torch.equal(trainer.theta[0], rows[best])


def test_every_task_begins_with_a_new_optimiser_and_rate() -> None:
    streams, starts = digit_streams([0]), []
    trainer = make_trainer(method("ewc"), streams, replace(SHORT, epochs=4))
    begin = trainer._begin_phase

    def begun() -> None:
        begin()
        state = [float(t.abs().sum()) for t in trainer.adam.tensors().values()]
        starts.append((float(trainer.rate[0]), state, float(trainer.best_loss[0]), float(trainer.waited[0])))

    trainer._begin_phase = begun  # type: ignore[method-assign]
    trainer.run()
    assert starts == [(pytest.approx(5e-3), [0.0] * 3, float("inf"), 0.0)] * 2


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
    begin, begins = trainer._begin_phase, []

    def begun() -> None:
        begin()
        begins.append(trainer.theta.clone())

    trainer._begin_phase = begun  # type: ignore[method-assign]
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


# ---------------------------------------------------------------------- runs that diverge


@pytest.mark.parametrize("name", ["finetune", "caf-ewc", "ewc-af2", "si"])
def test_a_run_that_diverges_stops_and_leaves_others_alone(name: str) -> None:
    streams = digit_streams([0, 1, 2])
    poisoned = make_trainer(method(name), streams, SHORT)
    poisoned.theta[1] = torch.inf
    poisoned.run()
    assert poisoned.position.diverged == [None, [0, 0], None]  # in the first epoch of the first task, from 0
    assert poisoned.live == [0, 2]
    clean = trained(name, [streams[0], streams[2]])
    assert_same(poisoned, 0, clean, 0)
    assert_same(poisoned, 2, clean, 1)
    for record in poisoned.position.records:
        assert torch.tensor(record["accuracy"][1]).isnan().all()


def test_a_run_may_diverge_later() -> None:
    streams = digit_streams([0, 1])
    trainer = make_trainer(method("ewc"), streams, replace(SHORT, epochs=3))

    def poison(t: Trainer) -> bool:
        if (t.position.phase, t.position.epoch) == (1, 1):
            t.theta[0, 5] = torch.nan
        return False

    trainer.run(poison)
    assert trainer.position.diverged == [[1, 1], None]  # in the second epoch of the second task
    assert_same(trainer, 1, trained("ewc", streams[1:], replace(SHORT, epochs=3)))
    assert torch.isfinite(torch.tensor(trainer.position.records[0]["accuracy"])).all()


def test_when_all_runs_diverge_the_training_ends() -> None:
    trainer = make_trainer(method("finetune"), digit_streams([0, 1]), SHORT)
    trainer.theta.fill_(torch.nan)
    position = trainer.run()
    assert position.diverged == [[0, 0], [0, 0]]
    assert position.records == []


# ---------------------------------------------------------------------- interruptions


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_training_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    """At every moment a watcher is asked: after each epoch, and after each task."""
    training = Training(epochs=4, batch=32, rate=0.02, patience=2)
    streams = [hand_stream(sizes, seed=s, held_out=12, noise=1000) for s, sizes in enumerate(([40, 30], [50, 20]))]
    whole = make_trainer(method(name), streams, training)
    moments: list[tuple[int, int]] = []
    waiting: list[bool] = []

    def watch(t: Trainer) -> bool:
        moments.append((t.position.phase, t.position.epoch))
        waiting.append(bool(t.waited.any()))
        return False

    whole.run(watch)
    some = slice(1, None, 3) if len(moments) > 5 else slice(1, None, 2)
    assert any(waiting[some]) or name == "joint"  # at some moment below, the rate is about to drop
    for moment in moments[some]:
        begun = make_trainer(method(name), streams, training)
        path = tmp_path / f"{moment[0]}-{moment[1]}.safetensors"

        def stop(t: Trainer, moment: tuple[int, int] = moment) -> bool:
            return (t.position.phase, t.position.epoch) == moment

        if moment[0] < len(whole.phases):
            with pytest.raises(Interrupted):
                begun.run(stop)
        else:
            begun.run(stop)
        save_state(path, begun.tensors(), begun.position, "me")
        continued = make_trainer(method(name), streams, training)
        continued.theta.zero_()  # nothing of its own may matter
        continued.position = load_state(path, continued.tensors(), "me")
        continued.run()
        for run in range(2):
            assert_same(continued, run, whole, run)


def test_dropout_differs_between_steps_and_epochs_but_not_between_trainings() -> None:
    stream = [hand_stream([32], seed=0)]
    one, two = (make_trainer(method("finetune"), stream, Training(epochs=2, batch=32)) for _ in range(2))
    keys: list[int] = []
    for trainer in (one, two):
        trainer.run(lambda t: keys.append(int(t.keys[0])) or False)
    assert keys[:2] == keys[3:5] and keys[0] != keys[1]
    assert digits_mlp(4).drop2.p > 0
    assert_same(one, 0, two, 0)
