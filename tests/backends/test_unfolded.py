"""Convolutions as products of windows against one convolution a learner."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padded, padded_to_eight
from kenyon.backends.triton.pooling import Maps
from kenyon.backends.triton.stacked import pays, unfolded


@pytest.mark.parametrize(
    ("K", "inputs", "outputs", "kernel", "stride", "padding", "side"),
    [
        (2, 3, 4, 3, 1, 1, 3),
        (5, 2, 3, 5, 1, 2, 7),
        (3, 4, 2, 3, 2, 0, 8),
        (2, 1, 1, 1, 1, 0, 2),
        (4, 8, 4, 2, 1, 1, 5),
    ],
)
def test_windows_equal_convolutions(
    K: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int, side: int
) -> None:
    g = torch.Generator().manual_seed(K)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    x, w = random(3, padded(K * inputs), side, side), random(K, outputs, inputs, kernel, kernel)
    leaves, again = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    found = unfolded(layer, Maps(leaves[0], K, inputs), leaves[1])
    parts = [
        F.conv2d(again[0][:, k * inputs : (k + 1) * inputs], again[1][k], None, stride, padding) for k in range(K)
    ]
    expected = torch.stack(parts)
    assert found.is_split and found.channels == outputs and found.data.shape[1] == padded_to_eight(outputs)
    assert not found.data[:, outputs:].any()
    data = found.data[:, :outputs].unflatten(0, (K, -1))
    torch.testing.assert_close(data, expected, rtol=1e-10, atol=1e-12)
    joined = found.join().data
    assert joined.shape[1] == padded(K * outputs) and not joined[:, K * outputs :].any()
    torch.testing.assert_close(joined[:, : K * outputs], torch.cat(parts, 1), rtol=1e-10, atol=1e-12)
    scale = random(*expected.shape)
    ours = torch.autograd.grad((data * scale).sum(), leaves)
    theirs = torch.autograd.grad((expected * scale).sum(), again)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_it_pays_on_small_maps_of_wide_layers_only() -> None:
    wide = nn.Conv2d(102, 204, 3, padding=1)
    assert pays(wide, 64, (3, 3), 5) and not pays(wide, 64, (27, 27), 5)
    assert not pays(wide, 64, (3, 3), 1)  # nothing to leave out
    assert not pays(nn.Conv2d(2, 2, 3, padding="same"), 64, (3, 3), 5)
