"""Odd values for every argument of the estimator: taken, or refused in words."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soundness
from kenyon.errors import ConfigError
from kenyon.training import Training
from kenyon.utils.files import as_path
from tests.torture.odd import cases, tried

SAMPLE = 16  # of so many cases, make test tries one


def check(step: int, first: int = 0) -> tuple[int, int]:
    """How many cases were tried, and taken."""
    count = taken = 0
    for number, (name, case) in enumerate(cases()):
        if number % step == first:
            try:
                taken += tried(case)
            except BaseException as error:
                raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
            count += 1
    return count, taken


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some odd paths can be written to."""
    monkeypatch.chdir(tmp_path)


def test_some() -> None:
    count, taken = check(SAMPLE)
    assert count > 150 and 0 < taken < count / 2


@pytest.mark.torture
def test_all(record: dict[str, Any]) -> None:
    began = time.monotonic()
    count, taken = check(1)
    counts = {"cases": count, "taken": taken, "refused_in_words": count - taken}
    record["odd_values"] = {**counts, "seconds": round(time.monotonic() - began)}
    if os.environ.get("KENYON_TORTURE"):
        soundness.record("odd_values", "odd values for every argument of the estimator", **counts)


@pytest.mark.parametrize("rate", [2**70, 1.0, 1e-30, 3e38])
def test_rates_that_a_regime_takes(rate: float) -> None:
    assert Training(rate=rate).rate == rate


@pytest.mark.parametrize(
    "odd", [{"rate": 1e308}, {"rate": 10**5000}, {"drop": float("inf")}, {"epochs": 2**31}, {"epochs": 10**5000}]
)
def test_numbers_that_a_regime_refuses(odd: dict[str, Any]) -> None:
    (name,) = odd
    with pytest.raises(ConfigError, match=f"{name} must be"):
        Training(**odd)


@pytest.mark.parametrize("path", ["", "a\0b", "a\ud800"])
def test_paths_that_nobody_means(path: str) -> None:
    with pytest.raises(ConfigError, match="out"):
        as_path("out", path)
