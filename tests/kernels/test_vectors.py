"""Kernels of vectors and matrices: losses, heads, dropout, products for gradients of weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.backends.layers import DropoutSite, padded
from kenyon.backends.triton import dense as products
from kenyon.backends.triton import dropout as dropping
from kenyon.backends.triton import dropout as units
from kenyon.backends.triton import groups, heads, losses
from kenyon.backends.triton import heads as wide
from kenyon.backends.triton.groups import Sums
from kenyon.random import Noise, keyed_words_plain
from tests.interpreter import DEVICE, INTERPRETED, interpreted
from tests.kernels.cases import ALL, FLOATS, SOME, ULP, bytes_, double, normal, offset_of, same
from tests.kernels.guards import Guarded

# The interpreter has no products of bfloat16.
MULTIPLIED = torch.float32 if INTERPRETED else torch.bfloat16


def check_cross_entropy(runs: int, B: int, C: int) -> None:
    """sum_b w_b (log sum_c e^x_bc - x_b,y_b), with classes that are not there."""
    values, weight = 5 * normal(runs, B, C), normal(runs, B, seed=3).relu()
    labels = torch.randint(0, C, (runs, B), generator=torch.Generator().manual_seed(C)).to(DEVICE)
    if C > 4:
        values[..., 3] = -1e9
        labels[labels == 3] = 1
    expected, scale = double(values)[0], torch.arange(1.0, runs + 1, device=DEVICE)
    losses_ = (expected.logsumexp(-1) - expected.gather(-1, labels.unsqueeze(-1)).squeeze(-1)) * weight.double()
    [slope] = torch.autograd.grad((losses_.sum(-1) * scale).sum(), expected)
    leaf = values.requires_grad_()
    with Guarded() as memory:
        x, y, w = memory.place(leaf, offset_of(C)), memory.place(labels, 1), memory.place(weight, 3)
        found = losses.weighted_cross_entropy(x, y, w)
        [mine] = torch.autograd.grad((found * scale).sum(), leaf)
    same([found, mine], [losses_.sum(-1), slope], rtol=1e-5, atol=1e-4)


@pytest.mark.kernels
def test_cross_entropy() -> None:
    for C in (*ALL, 1000, 2049):
        check_cross_entropy(1 + C % 2, (1, 7, 64, 33)[C % 4], C)


def check_heads(runs: int, K: int, B: int, F: int, C: int) -> None:
    """x W^T + b of every learner; the weights of one run are a view of its row."""
    leaves = [normal(*shape).requires_grad_() for shape in ((runs, K, B, F), (runs, C, F), (runs, C))]
    x, w, b = double(*leaves)
    expected = torch.einsum("rkbf,rcf->rkbc", x, w) + b[:, None, None]
    slope = normal(*expected.shape, seed=2)
    theirs = torch.autograd.grad((expected * slope).sum(), [x, w, b])
    with Guarded() as memory:
        placed = [memory.place(leaf, offset_of(F + n)) for n, leaf in enumerate(leaves)]
        found = heads.own_logits(*placed)
        mine = torch.autograd.grad((found * slope).sum(), leaves)
    same([found, *mine], [expected, *theirs], rtol=1e-5, atol=1e-4)


@pytest.mark.kernels
def test_heads() -> None:
    for F in (*ALL, 1000, 1024):
        check_heads(2 if F < 500 else 1, 1 + F % 2, (1, 7, 33)[F % 3], F, (3, 16)[F % 2])
    check_heads(2, 2, 3, 21, 1)


def kept(noise: Noise, start: int, site: DropoutSite, shape: tuple[int, ...]) -> Tensor:
    """Unit (b, k, f) has byte start + b * padded(K F) + k F + f of its run."""
    runs, K, B, units_ = shape
    first, second = noise.first.cpu(), noise.second.cpu()
    words = keyed_words_plain(first, second, (start + B * site.shape[0]) // 4 + 1)
    found = words.view(torch.uint8)[:, start : start + B * site.shape[0]].view(runs, B, -1)[..., : K * units_]
    return (found.reshape(runs, B, K, units_).transpose(1, 2) >= site.threshold).to(DEVICE)


def check_units(K: int, B: int, size: int, dtype: torch.dtype, drops: bool) -> None:
    runs, start = 2, 4 * size
    site, values = DropoutSite(0.25, (padded(K * size),), size), normal(2, K, B, size, dtype=dtype)
    keys = torch.randint(0, 2**62, (runs,), generator=torch.Generator().manual_seed(size)).to(DEVICE)
    noise = Noise.at(keys, torch.tensor([3], device=DEVICE)) if drops else None
    factor = kept(noise, start, site, (runs, K, B, size)) * site.scale if noise is not None else 1.0
    expected = values.double().relu() * factor
    slope = normal(runs, K, B, size, seed=5)
    theirs = slope.double() * (expected != 0) * (site.scale if drops else 1.0)
    leaf = values.requires_grad_()
    with Guarded() as memory:
        x = memory.place(leaf, offset_of(size))
        found = units.relu_dropout(x, noise, site, start)
        [mine] = torch.autograd.grad((found * memory.place(slope, 1)).sum(), leaf)
    assert found.dtype == torch.float32 and mine.dtype == dtype
    same(found, expected, rtol=1e-6, atol=0)
    same(mine, theirs, rtol=ULP[dtype], atol=0)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_units(dtype: torch.dtype) -> None:
    for size in (*ALL, 1030):
        check_units(1 + size % 3, (1, 7, 16, 33)[size % 4], size, dtype, size % 5 > 0)


def check_dropped(K: int, B: int, size: int, dtype: torch.dtype) -> None:
    site, values = DropoutSite(0.5, (padded(K * size),), size), normal(K, B, size, dtype=dtype)
    piece, slope = bytes_(B, padded(K * size)), normal(K, B, size, seed=5, dtype=dtype)
    each = piece[:, : K * size].unflatten(1, (K, size)).transpose(0, 1)
    factor = (each >= site.threshold).double() * site.scale
    leaf = values.requires_grad_()
    with Guarded() as memory:
        x, bytes_of_site = memory.place(leaf, offset_of(size)), memory.place(piece, offset_of(size))
        assert dropping.available(x)
        found = dropping.dropped(x, bytes_of_site, site)
        turned = memory.place(slope, 1).transpose(0, 1).contiguous().transpose(0, 1)  # as maps leave them
        [mine] = torch.autograd.grad(found, leaf, turned)
    same([found, mine], [values.double() * factor, slope.double() * factor], rtol=ULP[dtype], atol=0)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropped(dtype: torch.dtype) -> None:
    for size in (*ALL, 1030):
        check_dropped(1 + size % 3, (1, 7, 16, 33)[size % 4], size, dtype)


def check_wide(runs: int, N: int, F: int, C: int) -> None:
    leaves = [normal(*shape).requires_grad_() for shape in ((runs, N, F), (runs, C, F), (runs, C))]
    x, w, b = double(*leaves)
    expected = x @ w.transpose(1, 2) + b[:, None]
    slope = normal(*expected.shape, seed=2)
    theirs = torch.autograd.grad((expected * slope).sum(), [x, w, b])
    with Guarded() as memory:
        placed = [memory.place(leaf, offset_of(C + n)) for n, leaf in enumerate(leaves)]
        assert wide.wide_available(*placed[:2])
        found = wide.wide_product(*placed)
        mine = torch.autograd.grad((found * slope).sum(), leaves)
    same([found, *mine], [expected, *theirs], rtol=1e-4, atol=1e-3)


@pytest.mark.kernels
def test_wide_heads() -> None:
    for size in ALL:
        check_wide(1 + size % 2, 71 - size, 512 + size if size % 4 else 512 + 16 * size, size)
    check_wide(1, 5, 640, 256)


def check_outer(K: int, B: int, O: int, I: int, monkeypatch: pytest.MonkeyPatch | None = None) -> None:  # noqa: E741
    """dy^T x, written to its place in a row."""
    if monkeypatch is not None and INTERPRETED:
        monkeypatch.setattr(products, "available", lambda x: True)
    dy, x = normal(K, B, O, dtype=MULTIPLIED), normal(K, B, I, seed=1, dtype=MULTIPLIED)
    with Guarded() as memory:
        place = memory.lay(torch.zeros(K, O, I, device=DEVICE), offset_of(O))
        found = products.weight_gradient(memory.place(dy, offset_of(B)), memory.place(x, offset_of(I)), place)
        assert found is place
        same(found, torch.einsum("kbo,kbi->koi", dy.double(), x.double()), rtol=1e-5, atol=1e-4)


@pytest.mark.kernels
def test_gradients_of_weights_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ALL:
        check_outer(1 + size % 2, (1, 5, 16, 65)[size % 4], size, 71 - size, monkeypatch)
    for B in SOME[::2]:
        check_outer(1, B, 33, 130, monkeypatch)


def check_sums(G: int, B: int, O: int, I: int, pushed: bool, square: bool) -> None:  # noqa: E741
    """into + sum_g share_g |dy_g^T x_g + push|, or its square."""
    dy, x = normal(G, B, O, dtype=MULTIPLIED), normal(G, B, I, seed=1, dtype=MULTIPLIED)
    first, push, shares = normal(1, O, I), normal(1, O, I, seed=4), normal(G).abs()
    found = torch.einsum("gbo,gbi->goi", dy.double(), x.double()) + (push.double() if pushed else 0.0)
    each = found.square() if square else found.abs()
    expected = first.double() + (shares.double()[:, None, None] * each).sum(0)
    with Guarded() as memory:
        into, pushing = memory.place(first, offset_of(O)), {"w": memory.place(push, offset_of(I))} if pushed else None
        sums = Sums({"w": into}, pushing, memory.place(shares, 1), square)
        sums.add_products("w", memory.place(dy, offset_of(B)), memory.place(x, 1))
        same(into, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.kernels
@pytest.mark.parametrize(("pushed", "square"), [(True, True), (False, False)])
def test_sums_of_products(pushed: bool, square: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "available", lambda x: True)
    for size in ALL:
        G, B = ((1, 1), (3, 20), (2, 33))[size % 3]
        check_sums(G, B, size, 71 - size, pushed, square)
    check_sums(2, 64, 130, 200, pushed, square)


def samples() -> None:
    """A handful of awkward sizes of every kernel here."""
    for C in (1, 17, 70):
        check_cross_entropy(2, 33, C)
    for F in (1, 33, 70):
        check_heads(2, 2, 7, F, 3)
    for size in (1, 33, 70):
        check_units(3, 7, size, torch.bfloat16, True)
        check_dropped(3, 7, size, torch.bfloat16)
    check_wide(2, 33, 513, 21)
    for B, O, I in ((1, 1, 70), (65, 33, 61)):  # noqa: E741
        check_outer(2, B, O, I)
    check_sums(3, 20, 33, 61, True, True)


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
