"""Distances of weights: by hand, and from files after every task."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kenyon.paper.analyses import Model, change
from tests.paper.analyses.small import conv_model


def test_by_hand() -> None:
    """From 0, 3 along one weight, then 4 along another: total 3 + 4 = 7, displacement 5. Heads do not count."""
    model = conv_model()
    first = model.initial()
    one = first.clone()
    one[0, 0] += 3.0
    two = one.clone()
    two[0, 1] += 4.0
    model.net.layout.view(two, "head.bias")[0, 0, 0] += 100.0
    found = change(model.with_rows(two), [one, two])
    assert found.per_task is not None
    np.testing.assert_allclose(found.per_task, [3, 4], rtol=1e-5)
    assert found.total == pytest.approx(7, rel=1e-5) and found.displacement == pytest.approx(5, rel=1e-5)
    assert found.weights == model.net.layout.protected


def test_without_the_weights_in_between_there_is_no_total() -> None:
    found = change(conv_model())
    assert found.displacement == 0 and found.total is None and found.per_task is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_way_is_never_shorter_than_where_it_led(seed: int) -> None:
    model = conv_model()
    g = torch.Generator().manual_seed(seed)
    one, two = (torch.randn(model.rows.shape, generator=g) for _ in range(2))
    found = change(model.with_rows(two), [one, two])
    assert found.total is not None and found.total >= found.displacement - 1e-4


def test_from_a_folder(results: Path) -> None:
    for method in ("ewc", "caf-ewc", "icl-ewc"):
        model = Model.load(results, "digits", method, 1, device="cpu")
        found = change(model)
        stages = [model.initial(), model.after(1), model.after(2), model.rows]
        shared = slice(0, model.net.layout.protected)
        steps = [float((b - a)[:, shared].norm()) for a, b in pairwise(stages)]
        assert found.per_task is not None and min(steps) > 0
        np.testing.assert_allclose(found.per_task, steps, rtol=1e-5)
    assert change(Model.load(results, "digits", "joint", device="cpu")).total is None
