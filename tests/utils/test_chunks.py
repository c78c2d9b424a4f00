"""Rows that are passed over piece by piece on a CPU have the numbers of rows that are passed over whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.backends.optimizers import Adam, Optimizer, Sgd
from kenyon.backends.triton.updates import Force, QuadraticPull, WeightDecay
from kenyon.methods.importance import GradientImportance, fisher_published, mas
from kenyon.training.importance import add_importance
from kenyon.utils import threads

R, P = 3, 1100
MOVES = torch.tensor([1.0, 0.0, 1.0])


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pushing(kinds: str) -> list[Force]:
    """Pulls on fewer and fewer columns, and decays."""
    found: list[Force] = []
    for number, kind in enumerate(kinds, start=1):
        size = P - 100 * number
        if kind == "p":
            weight, target = random(R, size, seed=number).abs(), random(R, size, seed=-number)
            found.append(QuadraticPull(random(R, seed=number).abs(), weight, target))
        else:
            found.append(WeightDecay(random(R, 4, seed=number).abs(), torch.arange(P) % 5 - 1))
    return found


@given(R=st.integers(1, 5), P=st.integers(0, 50), most=st.integers(1, 60))
def test_pieces_are_all_columns_in_their_order(R: int, P: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "CHUNK", most)
        parts = threads.column_chunks(torch.empty(R, P))
    assert [column for part in parts for column in range(P)[part]] == list(range(P))
    assert all(0 < R * (part.stop - part.start) <= max(most, R) for part in parts)


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from([Adam, Sgd]), kinds=st.sampled_from(["", "p", "d", "pd", "ppd"]), most=st.integers(1, R * P)
)
def test_steps_are_the_same_to_the_last_bit(kind: type[Optimizer], kinds: str, most: int) -> None:
    def moved() -> list[Tensor]:
        theta, rate = random(R, P, seed=1), torch.tensor([0.1, 0.2, 0.3])
        optimizer = kind(theta.shape, theta.device, *(0.9,) * (kind is Sgd))  # type: ignore[call-arg]
        for step in range(3):
            gradient = random(R, P, seed=9 + step)
            optimizer.step(theta, gradient, rate, MOVES if step else torch.ones(R), pushing(kinds))
        return [theta, gradient, *optimizer.tensors().values()]

    with pytest.MonkeyPatch.context() as patch:
        whole = moved()
        patch.setattr(threads, "CHUNK", most)
        assert all(map(torch.equal, moved(), whole))


@pytest.mark.parametrize("importance", [fisher_published(), mas()])
@pytest.mark.parametrize("kinds", ["", "p", "d"])
def test_importances_are_the_same_to_the_last_bit(
    importance: GradientImportance, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def added() -> Tensor:
        estimate = random(R, P - 50, seed=3).abs()
        add_importance(importance, estimate, random(R, P, seed=4), random(R, P, seed=5), MOVES, pushing(kinds))
        return estimate

    whole = added()
    monkeypatch.setattr(threads, "CHUNK", 70)
    assert torch.equal(added(), whole)
