"""Heads of many features: the kernel against products in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.backends.triton import heads as wide
from kenyon.backends.triton.heads import own_logits
from kenyon.models.heads import _linear
from tests.interpreter import DEVICE, interpreted


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((3, 40, 600), (3, 5, 600)),  # runs
        ((64, 512), (20, 512)),  # one
        ((2, 7, 1030), (55, 1030)),  # learners of one
        ((1, 33, 513), (1, 1, 513)),
    ],
)
def test_it_is_the_product(x: tuple[int, ...], weight: tuple[int, ...]) -> None:
    leaves = [random(*shape).requires_grad_() for shape in (x, weight, weight[:-1])]
    assert wide.wide_available(*leaves[:2])
    again = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found, right = _linear(*leaves), _linear(*again)
    assert found.shape == right.shape and found.dtype == torch.float32
    scale = random(*found.shape)
    ours = torch.autograd.grad((found * scale).sum(), leaves)
    theirs = torch.autograd.grad((right * scale).sum(), again)
    for mine, wanted in zip([found, *ours], [right, *theirs], strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.kernels
def test_a_run_has_the_same_numbers_beside_others() -> None:
    x, w, b = random(3, 20, 700), random(3, 9, 700), random(3, 9)
    together = wide.wide_product(x, w, b)
    for run in range(3):
        alone = wide.wide_product(x[run : run + 1], w[run : run + 1], b[run : run + 1])
        assert torch.equal(alone[0], together[run])


@pytest.mark.kernels
def test_learners_share_a_wide_head() -> None:
    f, w, b = random(2, 3, 10, 1100), random(2, 20, 1100), random(2, 20)
    found, right = own_logits(f, w, b), own_logits(*(x.double() for x in (f, w, b)))
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-4)


def test_narrow_products_and_other_numbers_are_left_to_the_library() -> None:
    assert not wide.wide_available(random(4, 100), random(3, 100))
    assert not wide.wide_available(random(4, 1000), random(300, 1000))
    assert not wide.wide_available(random(4, 1000).double(), random(3, 1000).double())


def test_the_kernel_in_the_interpreter() -> None:
    interpreted(__file__)
