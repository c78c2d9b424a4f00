"""Replay: what is kept, what is drawn, and what a step makes of it, against the definition done slowly."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.data import Stream, Times, from_arrays
from kenyon.errors import ConfigError
from kenyon.methods import Method, find_method
from kenyon.methods.base import Replay
from kenyon.training import Trainer, Training
from kenyon.training.batches import Fleet
from kenyon.training.replay import Memory, first_places, kept_samples
from tests.references import DigitsLearner, Hand, hand_stream, make_trainer, normalised, plain_mlp
from tests.training.fleets import assert_same, digit_streams

UNEQUAL = ([90, 40, 30], [33, 70, 64], [64, 5, 20])


def test_what_is_kept_is_balanced_random_and_a_function_of_the_seed() -> None:
    stream = hand_stream([40, 33], classes=[2, 3])
    for task, count in ((0, 2), (1, 3)):
        kept = kept_samples(stream, task, 5)
        labels = stream.tasks[task].train.labels[kept]
        assert Counter(labels.tolist()) == dict.fromkeys(range(count), 5)
        assert len(set(kept.tolist())) == len(kept)
        assert torch.equal(kept, kept_samples(stream, task, 5))
        assert set(kept.tolist()) < set(kept_samples(stream, task, 9).tolist())  # a larger memory has these too
    others = [kept_samples(hand_stream([40, 33], seed=seed), 0, 5).tolist() for seed in range(4)]
    assert len({tuple(other) for other in others}) == 4
    assert len(kept_samples(stream, 1, 1000)) == 33  # all there are


@given(
    memory=st.integers(1, 6), batch=st.integers(1, 20), form=st.sampled_from(["published", "mixed"]), task=st.just(2)
)
@settings(max_examples=30, deadline=None)
def test_a_step_draws_kept_samples_once_and_weighs_them_as_defined(
    memory: int, batch: int, form: str, task: int
) -> None:
    streams = [hand_stream([20, 3, 16], seed=s, classes=[2, 3, 2]) for s in range(2)]
    fleet = Fleet(streams, torch.device("cpu"))
    held = Memory(fleet, Replay(memory, batch, form))  # type: ignore[arg-type]
    loader = held.loader(8, 16, task)
    held.draw(loader, task, torch.tensor([11, 12]))
    assert loader.heads is not None and loader.heads.tolist() == [2, 0, 1]
    for run, stream in enumerate(streams):
        kept = [stream.tasks[t].train.index[kept_samples(stream, t, memory)].tolist() for t in range(task)]
        for step in range(loader.capacity):
            there = loader.valid[run, step, 8:].bool()
            index, member, weight = (b[run, step, 8:][there] for b in (loader.index, loader.member, loader.weight))
            drawn = [index[member == 1 + t].tolist() for t in range(task)]
            assert all(set(mine) <= set(all_of) for mine, all_of in zip(drawn, kept, strict=True))
            assert len(set(index.tolist())) == len(index)
            if form == "published":  # so many of every task; the weights of each add up to 1
                assert [len(mine) for mine in drawn] == [min(batch, len(all_of)) for all_of in kept]
                for t in range(task):
                    assert float(weight[member == 1 + t].sum()) == pytest.approx(1)
            else:
                assert len(index) == min(batch, sum(map(len, kept)))
                assert float(weight.sum()) == pytest.approx(1)
            assert float(loader.weight[run, step, 8:][~there].sum()) == 0


def test_tasks_that_share_a_head_meet_old_samples_through_it() -> None:
    x, y = torch.arange(90.0).view(-1, 1), torch.arange(90) % 2
    stream = from_arrays(x, y, Times(3)).stream(0, validation=0.2)
    held = Memory(Fleet([stream], torch.device("cpu")), Replay(4, 3))
    loader = held.loader(8, 20, 2)
    held.draw(loader, 2, torch.tensor([5]))
    assert loader.heads is None and not loader.joint and loader.memory_size == 6
    kept = [stream.tasks[t].train.index[kept_samples(stream, t, 4)].tolist() for t in range(2)]
    for step in loader.index[0, :, 8:].tolist():
        assert set(step[:3]) <= set(kept[0]) and set(step[3:]) <= set(kept[1]) and len(set(step)) == 6


def test_draws_differ_between_steps_and_every_kept_sample_comes_up() -> None:
    fleet = Fleet([hand_stream([60, 400])], torch.device("cpu"))
    held = Memory(fleet, Replay(10, 4))
    loader = held.loader(8, 400, 1)
    held.draw(loader, 1, torch.tensor([3]))
    drawn = loader.index[0, :, 8:]
    assert len({tuple(sorted(step)) for step in drawn.tolist()}) > 20
    counts = Counter(drawn.flatten().tolist())
    assert len(counts) == 20 and min(counts.values()) > 1


@given(lots=st.lists(st.integers(0, 4), min_size=1, max_size=12), count=st.integers(1, 12))
def test_the_first_are_those_of_a_stable_sort(lots: list[int], count: int) -> None:
    found = first_places(torch.tensor(lots), min(count, len(lots))).tolist()
    assert found == sorted(range(len(lots)), key=lots.__getitem__)[:count]


def slow_replay(hand: Hand, first: Tensor, stream: Stream, training: Training, memory: int, *, mixed: bool) -> Tensor:
    """In float64, every epoch one batch of all samples and all that is kept; no dropout."""
    theta, old = first.double().clone(), []
    for task in range(len(stream.tasks)):
        best_loss, best, rate, waited = float("inf"), theta.clone(), training.rate, 0
        theta = theta.clone().requires_grad_()
        optimizer = torch.optim.Adam([theta], lr=rate)
        for _ in range(training.epochs):
            split = stream.tasks[task].train
            loss = F.cross_entropy(hand.logits(theta, normalised(split, stream), task)[0], split.labels)
            each = []
            for before, places in enumerate(old):
                split = stream.tasks[before].train
                logits = hand.logits(theta, normalised(split, stream)[places], before)[0]
                each.append(F.cross_entropy(logits, split.labels[places], reduction="none"))
            groups = [torch.cat(each)] if mixed and each else each
            loss = loss + sum(group.mean() for group in groups)
            theta.grad = torch.autograd.grad(loss, theta)[0]
            optimizer.step()
            split = stream.tasks[task].validation
            with torch.no_grad():  # of the new task alone
                said = float(F.cross_entropy(hand.logits(theta, normalised(split, stream), task)[0], split.labels))
            if said < best_loss:
                best_loss, best, waited = said, theta.detach().clone(), 0
            else:
                waited += 1
                if waited >= training.patience:
                    rate, waited = rate / training.drop, 0
                    theta = theta.detach().clone().requires_grad_()
                    optimizer = torch.optim.Adam([theta], lr=rate)
        theta = best
        old.append(kept_samples(stream, task, memory))
    return theta


@pytest.mark.parametrize("form", ["published", "mixed"])
def test_a_training_equals_replay_done_slowly(form: str) -> None:
    stream = hand_stream([47, 35, 50], seed=5, held_out=13, noise=1000)
    training = Training(epochs=9, batch=64, rate=0.01, patience=1)
    method = find_method("er")({"memory": 4, "replay": form})
    trainer = make_trainer(method, [stream], training, backbone=plain_mlp(5, smooth=True))
    hand = Hand(DigitsLearner(5, smooth=True), 1, (2, 2, 2))
    expected = slow_replay(hand, trainer.theta[0].clone(), stream, training, 4, mixed=form == "mixed")
    trainer.run()
    torch.testing.assert_close(trainer.theta[0].double(), expected, rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("form", ["published", "mixed"])
def test_runs_of_unequal_sizes_equal_runs_alone(form: str) -> None:
    """Also where a class has fewer samples than the memory has room for."""
    training = Training(epochs=3, batch=16, rate=5e-3, patience=1)
    streams = [hand_stream(sizes, seed=seed) for seed, sizes in enumerate(UNEQUAL)]
    method = find_method("er")({"memory": 6, "replay_batch": 7, "replay": form})
    together = make_trainer(method, streams, training)
    together.run()
    for run, stream in enumerate(streams):
        alone = make_trainer(method, [stream], training)
        alone.run()
        assert_same(together, run, alone)


def test_replay_remembers() -> None:
    """What was learned first is kept where it would otherwise be lost."""
    streams = digit_streams([0, 1, 2, 3], tasks=4)
    training = Training(epochs=20, batch=16, rate=1e-2)
    kept, lost = (make_trainer(m, streams, training, width=8) for m in (find_method("er")({}), Method()))
    for trainer in (kept, lost):
        trainer.run()
    final = [float(torch.tensor(t.position.records[-1]["accuracy"])[:, :3].mean()) for t in (kept, lost)]
    assert final[0] > final[1] + 2


@pytest.mark.parametrize(
    ("hyper", "named"), [({"memory": 0}, "memory"), ({"replay_batch": 0}, "replay_batch"), ({"replay": "x"}, "x")]
)
def test_impossible_memories_are_refused(hyper: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        find_method("er")(hyper)


def test_a_memory_for_more_than_there_is_keeps_everything() -> None:
    fleet = Fleet(digit_streams((0,), tasks=2), torch.device("cpu"))
    memory = Memory(fleet, Replay(memory=10**12))
    memory._fill(1)
    assert int(memory.sizes[0, 0]) == len(fleet.streams[0].tasks[0].train)


def test_old_samples_differ_between_epochs() -> None:
    replay = find_method("er")({"memory": 10, "replay_batch": 4})
    trainer = make_trainer(replay, [hand_stream([60, 60])], Training(epochs=3, batch=16))
    seen: list[tuple[int, ...]] = []

    def watch(now: Trainer) -> bool:
        if now.position.phase == 1 and now.position.epoch:
            seen.append(tuple(now.engine.loader.index[0, :, 16:].flatten().tolist()))
        return False

    trainer.run(watch)
    assert len(set(seen)) == 3
