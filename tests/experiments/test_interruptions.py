"""Experiments that are interrupted or diverge: nothing finished is lost, and the numbers stay the same.

Those that are killed are in tests/torture.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kenyon.methods import find_method
from kenyon.training import Interrupted
from tests.experiments.small import Counter, digits, numbers, stop_after

INTERRUPTED = [
    "ewc",
    "si",
    "rwalk",
    "caf-ewc",
    "ewc-af2",
    "random-init",
    "pnc",
    "er",
    "icl-ewc",
    "discrete",
    "joint-caf",
]


@pytest.mark.parametrize("method", INTERRUPTED)
def test_interrupted_and_run_again_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    more = {"epochs": 2, "batch": 64, **({"learners": 2} if find_method(method).multi else {})}
    whole = digits(tmp_path / "whole", [method], **more)[method]
    for calls in (0, 1) if method == "joint-caf" else (1, 4):  # joint training has one phase
        out, counter = tmp_path / str(calls), Counter()
        with pytest.raises(Interrupted):
            digits(out, [method], stop=stop_after(calls), **more)
        assert not (out / "digits" / method / "result.json").exists()
        again = digits(out, [method], progress=counter, **more)[method]
        assert numbers(again) == numbers(whole)
        assert [fleet[2] > 0 for fleet in counter.fleets] == [True]  # it went on, it did not begin anew
        assert not list((out / "digits" / method).glob("state-*"))
        for seed in (0, 1):
            file = f"digits/{method}/weights-{seed}.safetensors"
            assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    """One epoch a session."""
    whole = digits(tmp_path / "whole", epochs=3)["ewc"]
    sessions = 0
    while True:
        sessions += 1
        try:
            result = digits(tmp_path / "pieces", epochs=3, stop=lambda: True)["ewc"]
            break
        except Interrupted:
            assert sessions < 20
    assert sessions > 5
    assert numbers(result) == numbers(whole)


def test_an_interrupted_fleet_is_continued_beside_new_seeds(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        digits(tmp_path, seeds=[1, 2], epochs=2, stop=lambda: True)
    counter = Counter()
    result = digits(tmp_path, seeds=[0, 1, 2], epochs=2, progress=counter)["ewc"]
    assert [(f[1], f[2] > 0) for f in counter.fleets] == [((1, 2), True), ((0,), False)]
    assert numbers(result) == numbers(digits(tmp_path / "other", seeds=3, epochs=2)["ewc"])


def test_a_run_that_diverges_is_in_the_result(tmp_path: Path) -> None:
    result = digits(tmp_path, ["finetune"], rate=1e30, epochs=3)["finetune"]
    assert all(r.diverged is not None and r.diverged[0] == 0 for r in result.runs)
    assert result.aac is None and result.complete_runs == []
    assert numbers(digits(tmp_path, ["finetune"], rate=1e30, epochs=3)["finetune"]) == numbers(result)
