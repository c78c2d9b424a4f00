"""How many samples are tested at once, and that it does not matter."""

from __future__ import annotations

import pytest
import torch

from kenyon.training import evaluation as evaluating
from kenyon.training.evaluation import chunk_of
from tests.training.fleets import digit_streams, trained


@pytest.mark.parametrize(
    ("shape", "samples"),
    [((8, 8), 1024), ((3, 32, 32), 1024), ((3, 64, 64), 1024), ((3, 128, 128), 256), ((3, 224, 224), 128)],
)
def test_large_images_are_tested_in_smaller_chunks(shape: tuple[int, ...], samples: int) -> None:
    assert chunk_of(shape) == samples


@pytest.mark.parametrize("name", ["caf-ewc", "icl-ewc"])
def test_accuracy_does_not_depend_on_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained(name, digit_streams([2, 5]))
    whole = trainer._evaluate()
    monkeypatch.setattr(evaluating, "VALUES", 0)
    monkeypatch.setattr(evaluating, "LEAST", 16)  # several chunks a test
    parts = trainer._evaluate()
    assert torch.equal(whole.accuracy, parts.accuracy) and torch.equal(whole.own_accuracy, parts.own_accuracy)
    torch.testing.assert_close(whole.cosine, parts.cosine)
    torch.testing.assert_close(whole.euclidean, parts.euclidean)
