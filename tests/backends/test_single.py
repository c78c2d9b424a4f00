"""A convolution of one learner against PyTorch's own, on maps with channels that do not count."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padded
from kenyon.backends.triton.stacked import convolution


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "more", "kernel", "stride", "padding", "side"),
    [
        (3, 4, 13, 3, 1, 1, 5),
        (1, 16, 0, 11, 4, 2, 23),
        (16, 32, 0, 3, 1, 0, 4),
        (2, 5, 1, 2, 2, 1, 6),
    ],
)
def test_it_equals_an_ordinary_convolution(
    inputs: int, outputs: int, more: int, kernel: int, stride: int, padding: int, side: int, placed: bool
) -> None:
    g = torch.Generator().manual_seed(inputs)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    x, w = random(3, inputs + more, side, side), random(1, outputs, inputs, kernel, kernel)
    place = torch.full_like(w, torch.nan) if placed else None
    leaves, again = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    found = convolution(layer, *leaves, place)
    expected = F.conv2d(again[0][:, :inputs], again[1][0], None, stride, padding)
    assert found.shape[1] == padded(outputs) and not found[:, outputs:].any()
    torch.testing.assert_close(found[:, :outputs], expected, rtol=1e-10, atol=1e-12)
    scale = random(*expected.shape)
    # What comes back for channels that do not count does not count either.
    wide = torch.cat([scale, random(*found[:, outputs:].shape)], 1)
    ours = torch.autograd.grad((found * wide).sum(), leaves)
    theirs = torch.autograd.grad((expected * scale).sum(), again)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)
    assert place is None or torch.equal(place, ours[1])


def test_nothing_is_computed_for_what_needs_no_gradient() -> None:
    layer, x, w = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 4, 4), torch.randn(1, 3, 2, 3, 3, requires_grad=True)
    out = convolution(layer, x, w)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None and w.grad is not None and w.grad.shape == w.shape
