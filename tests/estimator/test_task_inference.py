"""Inference of the task of a sample: numbers by hand, and properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.estimator.knowledge import across_tasks, task_weights
from kenyon.estimator.learn_task import split_validation


def test_by_hand() -> None:
    """Heads of two and four classes: confidences (0.9 - 1/2) / (1/2) = 0.8 and (0.7 - 1/4) / (3/4) = 0.6."""
    heads = [torch.tensor([[0.9, 0.1]]), torch.tensor([[0.1, 0.7, 0.1, 0.1]])]
    weights = task_weights(heads)
    assert weights.tolist() == [pytest.approx([0.8 / 1.4, 0.6 / 1.4])]
    labels = [np.array(["b", "d"]), np.array(["a", "b", "c", "e"])]
    said = across_tasks(heads, labels, np.array(list("abcde")))[0].tolist()
    one, two = 0.8 / 1.4, 0.6 / 1.4
    assert said == pytest.approx([0.1 * two, 0.9 * one + 0.7 * two, 0.1 * two, 0.1 * one, 0.1 * two])


def test_a_class_that_is_named_twice_has_both_probabilities() -> None:
    said = across_tasks([torch.tensor([[0.25, 0.25, 0.5]])], [np.array([1.0, 1.0, 2.0])], np.array([1.0, 2.0]))
    assert said.tolist() == [[0.5, 0.5]]


def test_heads_that_know_nothing_weigh_the_same() -> None:
    heads = [torch.full((1, 2), 0.5), torch.full((1, 5), 0.2)]
    assert task_weights(heads).tolist() == [[0.5, 0.5]]


@given(counts=st.lists(st.integers(2, 5), min_size=1, max_size=4), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_probabilities_are_probabilities(counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    heads = [torch.rand(7, count, generator=generator, dtype=torch.float64).softmax(1) for count in counts]
    labels, start = [], 0
    for count in counts:
        labels.append(np.arange(start, start + count))
        start += count
    said = across_tasks(heads, labels, np.arange(start))
    assert torch.allclose(said.sum(1), torch.ones(7, dtype=torch.float64)) and bool((said >= 0).all())
    if len(counts) == 1:
        assert torch.allclose(said, heads[0])
    if len(set(counts)) == 1:  # then the likeliest class is one of the likeliest task
        assert torch.equal(said.argmax(1) // counts[0], task_weights(heads).argmax(1))


@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=60),
    share=st.floats(0, 0.95),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_held_out(labels: list[int], share: float, seed: int) -> None:
    y = torch.tensor(labels)
    train, apart = split_validation(y, share, seed, 0)
    assert sorted([*train.tolist(), *apart.tolist()]) == list(range(len(y)))
    assert set(y[train].tolist()) == set(labels)  # no class is held out whole
    spare = len(labels) - len(set(labels))
    assert len(apart) == (min(spare, max(1, round(share * len(y)))) if share > 0 else 0)
    assert torch.equal(split_validation(y, share, seed, 0)[0], train)
