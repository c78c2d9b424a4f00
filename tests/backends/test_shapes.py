"""Shapes without computing: as the layers themselves have them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kenyon.backends.layers import shapes_through

SIDES = st.integers(1, 12)


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    padding = draw(st.one_of(st.sampled_from(["same", "valid"]), st.tuples(st.integers(0, 2), st.integers(0, 2))))
    stride = 1 if padding == "same" else draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    sides = st.sampled_from((1, 3)) if padding == "same" else st.integers(1, 4)  # of even ones PyTorch warns
    kernel = draw(st.tuples(sides, sides))
    return nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dilation=draw(st.integers(1, 2)))


LAYERS = st.one_of(
    convolutions(),
    st.sampled_from([nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(6), nn.ReLU()]),
    st.sampled_from([nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 5), nn.Linear(8, 5), nn.Identity()]),
)


@settings(deadline=None)
@given(st.lists(LAYERS, min_size=1, max_size=4), SIDES, SIDES)
def test_they_are_those_of_the_layers(layers: list[nn.Module], height: int, width: int) -> None:
    x = torch.zeros(1, 2, height, width)
    before = torch.get_rng_state()
    found = list(shapes_through(layers, (2, height, width)))
    assert torch.equal(torch.get_rng_state(), before)
    for layer, shape in zip(layers, found, strict=False):
        try:
            x = layer(x)
        except (RuntimeError, ValueError, IndexError):
            assert shape is None and found[-1] is None
            return
        assert shape == x.shape[1:]
    assert len(found) == len(layers)
