"""Dropout of vectors in one pass, against the plain version and its gradient."""

from __future__ import annotations

import pytest
import torch

from kenyon.backends.layers import DropoutSite, padded
from kenyon.backends.triton import dropout as dropping
from tests.interpreter import DEVICE, interpreted


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("K", "B", "F", "probability"), [(1, 7, 48, 0.5), (3, 5, 6, 0.25), (5, 2, 300, 0.5), (1, 1, 1, 0.9)]
)
def test_the_kernel_is_the_plain_version(K: int, B: int, F: int, probability: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(B)
    site = DropoutSite(probability, (padded(K * F),), F)
    piece = torch.randint(0, 256, (B, padded(K * F)), dtype=torch.uint8, generator=generator).to(DEVICE)
    values, slopes = (torch.randn(K, B, F, generator=generator).to(DEVICE, dtype) for _ in range(2))
    x, again = (values.clone().requires_grad_() for _ in range(2))
    assert dropping.available(x)
    ours, plain = dropping.dropped(x, piece, site), dropping.dropped_plain(again, piece, site)
    assert ours.dtype is dtype
    torch.testing.assert_close(ours, plain)  # the interpreter does not round to bfloat16 as a GPU does
    assert torch.equal(ours == 0, plain == 0)
    [mine], [theirs] = (torch.autograd.grad(y, leaf, slopes) for y, leaf in ((ours, x), (plain, again)))
    torch.testing.assert_close(mine, theirs)
    turned = values.transpose(1, 2).contiguous().transpose(1, 2)  # as maps leave them
    assert torch.equal(dropping.dropped(turned, piece, site), ours)


def test_the_kernel_in_the_interpreter() -> None:
    interpreted(__file__)
