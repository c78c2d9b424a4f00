"""What could not be done is told, and the rest goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kenyon.experiments import training
from kenyon.experiments.scheduler import Incomplete
from tests.experiments.small import all_numbers, digits, numbers
from tests.experiments.test_fleets import full_device
from tests.nothing_lost.small import GIVEN


def test_a_run_without_room_does_not_keep_others_from_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two methods, the first too large: its numbers are missing, the second's are there."""
    full_device(monkeypatch, 0, (0, 1))
    small = training.Trainer

    class OnlyIndependent(small):  # type: ignore[misc, valid-type]
        def _note_failure(self, now: Any) -> None:
            if self.members > 1:
                super()._note_failure(now)

    monkeypatch.setattr(training, "Trainer", OnlyIndependent)
    with pytest.raises(Incomplete) as told:
        digits(tmp_path, ["icl-ewc", "finetune"], learners=2, **GIVEN)
    assert list(told.value.results) == ["finetune"] and len(told.value.results["finetune"].runs) == 2
    assert "icl-ewc, seed 0, 1: kenyon run digits --method icl-ewc --seeds 2 --tasks 2" in str(told.value)
    monkeypatch.undo()
    results = digits(tmp_path, ["icl-ewc", "finetune"], learners=2, **GIVEN)
    assert all_numbers(results)["finetune"] == numbers(told.value.results["finetune"])
