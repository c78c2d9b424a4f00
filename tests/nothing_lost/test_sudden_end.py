"""A sudden end keeps the last complete epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kenyon.training import Trainer
from kenyon.training import checkpoint as keeping
from tests.experiments.small import Counter, digits, numbers, weights
from tests.nothing_lost.small import GIVEN


def copied_every_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keeping, "COPY_EVERY", 0.0)
    patch.setattr(keeping, "COPY_REST", 0.0)


def ending(patch: pytest.MonkeyPatch, error: BaseException) -> None:
    """The first step of the second task's second epoch ends with an error, its weights changed already."""
    steps, step = [0], Trainer.step

    def ends(trainer: Trainer) -> None:
        steps[0] += (trainer.position.phase, trainer.position.epoch) == (1, 1)
        step(trainer)
        if steps[0] == 1:
            raise error

    patch.setattr(Trainer, "step", ends)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError, RuntimeError])
def test_a_sudden_end_keeps_the_last_complete_epoch(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any
) -> None:
    """Inside the fifth epoch, its weights changed already, long before a state would be saved."""
    copied_every_epoch(monkeypatch)
    with monkeypatch.context() as patch:
        ending(patch, error("no reason"))
        with pytest.raises(error):
            digits(tmp_path, **GIVEN)
    counter = Counter()
    assert (numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert counter.fleets[0][2] == 4


def test_memory_that_runs_out_on_the_way_halves_the_fleet_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any
) -> None:
    copied_every_epoch(monkeypatch)
    ending(monkeypatch, MemoryError())
    counter = Counter()
    assert (numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert counter.splits == [(2, 1)] and [done for _, _, done in counter.fleets] == [0, 4, 4]


def test_an_end_while_a_state_is_copied_or_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Any) -> None:
    """Between epochs the tensors themselves are the state."""
    copied_every_epoch(monkeypatch)
    calls = [0]

    def ends(position: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return position

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "deepcopy", ends)
        with pytest.raises(KeyboardInterrupt):
            digits(tmp_path, **GIVEN)
    counter = Counter()
    assert (numbers(digits(tmp_path, progress=counter, **GIVEN)["ewc"]), weights(tmp_path)) == whole
    assert counter.fleets[0][2] == 3
