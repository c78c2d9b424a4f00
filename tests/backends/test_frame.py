"""Convolutions without padding, computed with padding in a frame."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.backends.layers import MULTIPLE, Frame, frame_of


def through(x: Tensor, layers: list[tuple[int, bool]], weights: list[Tensor], padding: int | None = None) -> Tensor:
    for (own, pooled), weight in zip(layers, weights, strict=True):
        x = F.conv2d(x, weight, torch.ones(len(weight), dtype=x.dtype), padding=own if padding is None else padding)
        x = F.max_pool2d(x, 2) if pooled else x.relu()
    return x


@settings(deadline=None, max_examples=60)
@given(
    side=st.integers(6, 40),
    pooled=st.lists(st.booleans(), min_size=1, max_size=5),
    padding=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
def test_a_frame_changes_neither_values_nor_gradients(side: int, pooled: list[bool], padding: int, seed: int) -> None:
    layers = [(padding, p) for p in pooled]
    frame = frame_of(side, layers)
    if frame is None:
        return
    g = torch.Generator().manual_seed(seed)
    weights = [torch.randn(2, 1 if i == 0 else 2, 3, 3, generator=g).double() for i in range(len(layers))]
    both = [[w.clone().requires_grad_() for w in weights] for _ in range(2)]
    image = torch.randn(1, 1, side, side, generator=g).double()
    # Around the image lies anything where there is no padding, and nothing where there is.
    framed = torch.randn(1, 1, frame.side, frame.side, generator=g).double()
    inside = slice(frame.offset, frame.offset + side)
    framed[..., inside, inside] = image
    kept = slice(frame.first, frame.first + frame.size)
    plain, ours = through(image, layers, both[0]), through(framed, layers, both[1], padding=1)[..., kept, kept]
    torch.testing.assert_close(ours, plain)
    weight = torch.randn(plain.shape, generator=g).double()
    gradients = [torch.autograd.grad((out * weight).sum(), w) for out, w in zip((plain, ours), both, strict=True)]
    torch.testing.assert_close(gradients[1], gradients[0])


@given(side=st.integers(6, 60), pooled=st.lists(st.booleans(), min_size=1, max_size=4))
def test_every_map_suits_the_kernels(side: int, pooled: list[bool]) -> None:
    frame = frame_of(side, [(0, p) for p in pooled])
    if frame is not None:
        assert frame.side >= side + frame.offset
        maps = [frame.side >> sum(pooled[:i]) for i in range(len(pooled))]
        assert not any(map % MULTIPLE for map in maps)
        assert frame.first + frame.size <= frame.side >> sum(pooled)


@pytest.mark.parametrize(
    ("side", "layers", "expected"),
    [
        (28, [(0, False), (0, True)] * 2, Frame(32, 2, 2, 4, ((3, 26), (4, 24), (3, 10), (4, 8)))),  # Omniglot
        (32, [(1, False), (1, True)] * 2, Frame(32, 0, 0, 8, ((0, 32), (0, 32), (0, 16), (0, 16)))),
        (32, [(0, False)], Frame(32, 0, 1, 30, ((1, 30),))),  # the border is lost anyway
        (32, [(0, True)], Frame(64, 1, 1, 15, ((2, 30),))),
        (30, [(1, False)], None),  # a larger frame would not be empty behind the first layer
        (16, [(1, False), (0, False)], None),
        (65, [(0, False)], None),
        (4, [(0, False), (0, False)], None),  # nothing is left
    ],
)
def test_the_smallest_frame(side: int, layers: list[tuple[int, bool]], expected: Frame | None) -> None:
    assert frame_of(side, layers) == expected
