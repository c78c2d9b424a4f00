"""What listens, what an undisturbed run gives, and a state after every epoch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kenyon.experiments import training
from kenyon.utils.progress import reporting_to
from tests.experiments.small import digits, numbers, weights
from tests.listening import Listener
from tests.nothing_lost.small import GIVEN


@pytest.fixture
def notices() -> Iterator[list[str]]:
    listener = Listener()
    with reporting_to(listener):
        yield listener.notices


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    out = tmp_path_factory.mktemp("whole")
    return numbers(digits(out, **GIVEN)["ewc"]), weights(out)


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state after every epoch."""
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(training, "REST", 0.0)
