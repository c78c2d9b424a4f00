"""Convolutions at every s-th pixel as ones of deeper pixels, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kenyon.backends.cpu.looped import Looped
from kenyon.backends.triton import strided as deepened
from kenyon.backends.triton.stacked import Stacked
from kenyon.backends.triton.strided import SpaceToDepth
from kenyon.models import Net
from tests.interpreter import DEVICE, interpreted


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), stride=st.integers(2, 4), channels=st.integers(1, 4), more=st.integers(0, 5))
def test_it_equals_an_ordinary_convolution(data: st.DataObject, stride: int, channels: int, more: int) -> None:
    window = [data.draw(st.integers(stride, 2 * stride + 3)) for _ in range(2)]
    padding = [data.draw(st.integers(0, w - 1)) for w in window]
    sides = [data.draw(st.integers(max(1, w - 2 * p), 20)) for w, p in zip(window, padding, strict=True)]
    layer = nn.Conv2d(channels, 3, tuple(window), stride, tuple(padding))
    deep = SpaceToDepth.of(layer)
    assert deep is not None
    x, w = random(2, channels + more, *sides), random(3, channels, *window)
    found = F.conv2d(deep.images_plain(x), deep.weights(w).flatten(3).permute(0, 3, 1, 2))
    expected = F.conv2d(x[:, :channels], w, None, stride, tuple(padding))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(deep.flat(deep.weights(w).flatten(3).permute(0, 3, 1, 2)), w)


def test_only_images_at_a_stride_are_deepened() -> None:
    assert SpaceToDepth.of(nn.Conv2d(3, 64, 11, stride=4, padding=2)) is not None
    for layer in (
        nn.Conv2d(3, 8, 3),
        nn.Conv2d(3, 8, 3, stride=(2, 1)),
        nn.Conv2d(3, 8, 2, stride=3),  # windows with pixels between them
        nn.Conv2d(16, 8, 3, stride=2),
        nn.Conv2d(3, 8, 3, stride=2, dilation=2),
        nn.Conv2d(2, 8, 3, stride=2, groups=2),
    ):
        assert SpaceToDepth.of(layer) is None


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("channels", "more", "window", "stride", "padding", "side"),
    [(3, 5, 11, 4, 2, 64), (1, 0, 3, 2, 1, 7), (4, 0, 2, 2, 0, 9), (3, 1, 5, 3, 0, 17)],
)
def test_the_kernel_is_the_plain_version(
    channels: int, more: int, window: int, stride: int, padding: int, side: int, dtype: torch.dtype
) -> None:
    deep = SpaceToDepth.of(nn.Conv2d(channels, 8, window, stride, padding))
    assert deep is not None
    whole = random(2, channels + more, side, side + 3).to(DEVICE, dtype)
    for x in (whole, whole.contiguous(memory_format=torch.channels_last)):
        assert deepened._available(x)
        found = deep.images(x)
        assert torch.equal(found, deep.images_plain(x)) and found.dtype is dtype
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("K", [1, 3])
def test_learners_that_begin_so_equal_those_one_by_one(K: int) -> None:
    shape = (3, 15, 13)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 5, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    net = Net(backbone, shape, [4], learners=K, dtype=torch.float64)
    assert isinstance(net.executor, Looped) and isinstance(net.backbone, nn.Sequential)
    images, row, heads = random(6, *shape), net.initial([2])[0].double(), torch.tensor([0])
    found = []
    for execute in (net.executor, Stacked(net.backbone, shape, K)):
        net.executor = execute
        leaf = row.clone().requires_grad_()
        logits = net.forward(leaf, images, heads).logits
        found.append((logits, torch.autograd.grad(logits.sin().sum(), leaf)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_the_kernel_in_the_interpreter() -> None:
    interpreted(__file__)
