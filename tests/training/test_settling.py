"""Epochs that can change nothing any more are left out, and what a task leaves is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kenyon.data import Stream
from kenyon.methods import METHODS
from kenyon.training import Interrupted, Trainer, Training
from kenyon.training.checkpoint import load_state, save_state
from kenyon.training.regime import SAFETY, Plateau
from tests.references import hand_stream, make_trainer
from tests.training.fleets import SHORT, method

LONG = Training(epochs=60, batch=32, rate=0.02, patience=2)


def streams(count: int = 2) -> list[Stream]:
    """Images with much noise: a network soon knows them by heart, and does worse on others."""
    return [hand_stream([40, 30], seed=seed, held_out=12, noise=1000) for seed in range(count)]


def followed(name: str, *, some: list[Stream], settles: bool = True, **options: Any) -> tuple[Trainer, list[int]]:
    """The trainer at its end, and how many epochs each phase had."""
    trainer = make_trainer(method(name), some, LONG, **options)
    assert isinstance(trainer.schedule, Plateau)
    if not settles:
        trainer.schedule.never_settle()
    epochs = [0] * len(trainer.phases)

    def watch(now: Trainer) -> bool:
        if now.position.epoch:
            epochs[now.position.phase] = now.position.epoch
        return False

    trainer.run(watch)
    return trainer, epochs


def assert_same_results(one: Trainer, other: Trainer, run: int = 0, other_run: int = 0) -> None:
    """To the last bit: the weights, what protects them, and every test."""
    for name in ("theta", "importance", "anchor"):
        mine, theirs = (x.unflatten(0, (-1, one.members)) for x in (one.tensors()[name], other.tensors()[name]))
        assert torch.equal(mine[run], theirs[other_run]), name
    for a, b in zip(one.position.records, other.position.records, strict=True):
        assert repr({n: v[run] for n, v in a.items()}) == repr({n: v[other_run] for n, v in b.items()})


@pytest.mark.parametrize("name", METHODS)
def test_a_task_leaves_what_it_would_leave_after_all_epochs(name: str) -> None:
    short, epochs = followed(name, some=streams())
    whole, every = followed(name, some=streams(), settles=False)
    assert every == [LONG.epochs] * len(every)
    for run in range(2):
        assert_same_results(short, whole, run, run)
    acts = name in ("si", "rwalk", "agscl", "ewc-af2", "mas-af2")  # in every epoch, whatever becomes of its weights
    assert (epochs == every and not short.schedule.settled.any()) if acts else (min(epochs) < LONG.epochs)


def test_what_a_run_leaves_does_not_depend_on_who_trains_on_beside_it() -> None:
    together, epochs = followed("ewc", some=streams(3))
    for run, stream in enumerate(streams(3)):
        alone, own = followed("ewc", some=[stream])
        assert_same_results(alone, together, 0, run)
        assert all(mine <= all_of_them for mine, all_of_them in zip(own, epochs, strict=True))


def test_a_training_stopped_anywhere_settles_as_one_that_was_not(tmp_path: Path) -> None:
    whole, epochs = followed("ewc", some=streams())
    moments = [(phase, epoch) for phase, count in enumerate(epochs) for epoch in (3, count // 2, count - 1, count)]
    for moment in moments:
        begun = make_trainer(method("ewc"), streams(), LONG)
        with pytest.raises(Interrupted):
            begun.run(lambda now, moment=moment: (now.position.phase, now.position.epoch) == moment)
        path = tmp_path / "state"
        save_state(path, begun.tensors(), begun.position, "me")
        continued = make_trainer(method("ewc"), streams(), LONG)
        continued.position = load_state(path, continued.tensors(), "me")
        continued.run()
        for run in range(2):
            assert_same_results(continued, whole, run, run)


def test_a_state_from_before_goes_on(tmp_path: Path) -> None:
    begun = make_trainer(method("ewc"), streams(), LONG)
    with pytest.raises(Interrupted):
        begun.run(lambda now: (now.position.phase, now.position.epoch) == (1, 2))
    older = {n: t for n, t in begun.tensors().items() if n not in ("before", "swing", "settled")}
    save_state(tmp_path / "state", older, begun.position, "me")
    continued = make_trainer(method("ewc"), streams(), LONG)
    continued.position = load_state(tmp_path / "state", continued.tensors(), "me")
    continued.run()
    whole, _ = followed("ewc", some=streams(), settles=False)
    for run in range(2):
        assert_same_results(continued, whole, run, run)


def test_momentum_that_goes_on_takes_all_epochs() -> None:
    training = replace(LONG, carry=True, optimiser="sgd")
    trainer = make_trainer(method("ewc"), streams(), training)
    seen: list[int] = []
    trainer.run(lambda now: bool(seen.append(now.position.epoch)))
    assert max(seen) == LONG.epochs


def plateau(runs: int = 1) -> Plateau:
    found = Plateau(LONG, torch.zeros(runs, 1))
    found.begin(torch.zeros(runs, 1))
    return found


def told(schedule: Plateau, losses: list[float]) -> list[bool]:
    """Whether the run is settled after each of these losses."""
    rate, found = torch.ones(1), []
    for number, loss in enumerate(losses):
        schedule.follow(torch.full((1, 1), float(number)), torch.tensor([loss]), rate)
        found.append(bool(schedule.settled[0]))
    return found


def test_settled_by_hand() -> None:
    """Patience 2, drop 3: it could still change 2 * swing * (1/3 + 1/9 + ...) = swing, SAFETY times."""
    step = 0.5 / SAFETY
    # The best is 1. The first rate has no swing before it; at the second the loss moves by `step`, and lies just at
    # the margin, 0.5, then at the third beyond it.
    assert told(plateau(), [1.0, 1.4, 1.5, 1.5 - step, 1.5]) == [False] * 5
    assert told(plateau(), [1.0, 1.4, 1.5, 1.5 - step, 1.5, 1.5 + step / 2, 1.5]) == [False] * 6 + [True]
    # Just as far from the best, but it still moves more.
    assert not any(told(plateau(), [1.0, 1.4, 1.5, 1.5 - step, 1.5, 1.5 + 2 * step, 1.5]))


def test_nothing_is_kept_of_a_settled_run() -> None:
    schedule = plateau()
    assert told(schedule, [1.0, 1.4, 1.5, 1.5, 1.5])[-1]
    schedule.follow(torch.full((1, 1), 9.0), torch.tensor([0.5]), torch.ones(1))
    assert schedule.best_loss == 1.0 and schedule.best == 0.0
    schedule.begin(torch.zeros(1, 1))  # the next task
    assert not schedule.settled.any()


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.integers(1, 5), st.sampled_from([0.5, 1.0, 1.5, 3.0])
)
def test_settled_only_far_above_the_best_and_for_good(losses: list[float], patience: int, drop: float) -> None:
    schedule = Plateau(replace(LONG, patience=patience, drop=drop), torch.zeros(1, 1))
    schedule.begin(torch.zeros(1, 1))
    found = told(schedule, losses)
    assert found == sorted(found)
    if any(found):
        first = found.index(True)
        assert drop > 1
        assert losses[first] > min(losses[:first])
        assert first >= 2 * patience  # a rate's swing is known when it has been tired a second time


def test_a_loss_that_is_no_number_settles_nothing() -> None:
    assert not any(told(plateau(), [float("nan")] * 9))


def test_answers_of_the_phase_before_settle_nothing() -> None:
    trainer = make_trainer(method("finetune"), [hand_stream([40, 30])], SHORT)
    trainer.settling.ask(5, torch.ones(1))
    trainer.enter_phase()
    assert not trainer.settling.known(last=True)


def test_what_happens_to_a_settled_run_later_counts_for_nothing() -> None:
    """It trains on only because others beside it do: its result may not depend on them."""
    trainer = make_trainer(method("finetune"), streams(3), LONG)
    assert isinstance(trainer.schedule, Plateau)
    schedule, broken = trainer.schedule, list[int]()

    def poison(now: Trainer) -> bool:
        settled = schedule.settled.nonzero().flatten().tolist()
        if now.position.phase == 0 and now.position.epoch and not broken and 0 < len(settled) < 3:
            broken.append(settled[0])
            now.theta[settled[0]] = torch.nan
        return False

    trainer.run(poison)
    [run] = broken
    assert trainer.position.diverged == [None] * 3
    assert_same_results(trainer, followed("finetune", some=[streams(3)[run]])[0], run)
