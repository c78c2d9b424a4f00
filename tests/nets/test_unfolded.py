"""Convolutions as products of windows against one convolution a learner."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.nets.dropout import padded
from kenyon.nets.unfolded import pays, unfolded


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
    x, w, b = (
        random(3, padded(K * inputs), side, side),
        random(K, outputs, inputs, kernel, kernel),
        random(K, outputs),
    )
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    found = unfolded(layer, *leaves)
    again = [t.clone().requires_grad_() for t in (x, w, b)]
    parts = [
        F.conv2d(again[0][:, k * inputs : (k + 1) * inputs], again[1][k], again[2][k], stride, padding)
        for k in range(K)
    ]
    expected = torch.cat(parts, dim=1)
    assert found.shape[1] == padded(K * outputs) and not found[:, K * outputs :].any()
    torch.testing.assert_close(found[:, : K * outputs], expected, rtol=1e-10, atol=1e-12)
    scale = random(*expected.shape)
    ours = torch.autograd.grad((found[:, : K * outputs] * scale).sum(), leaves)
    theirs = torch.autograd.grad((expected * scale).sum(), again)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_it_pays_on_small_maps_of_wide_layers_only() -> None:
    wide = nn.Conv2d(102, 204, 3, padding=1)
    small, large = torch.empty(64, 512, 3, 3), torch.empty(64, 512, 27, 27)
    assert pays(wide, small, 5) and not pays(wide, large, 5)
    assert not pays(wide, small, 1)  # nothing to leave out
    assert not pays(nn.Conv2d(2, 2, 3, padding="same"), small, 5)
