"""Dense layers in shares, against learners written out by hand and sums written out by loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from kenyon.backends.cpu import looped as shares
from kenyon.backends.cpu.looped import Looped, sharded_linear
from kenyon.backends.cpu.looped import shards_of as cut
from kenyon.backends.layout import Leaves
from kenyon.models import Net
from kenyon.utils.threads import cpu_threads
from tests.backends.by_hand import gradient, head, images, keep_factors, make, mixed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are made of small layers too, and are small."""
    monkeypatch.setattr(shares, "MANY", 1)
    monkeypatch.setattr(shares, "MOST", 100)


@given(st.integers(1, 400), st.integers(1, 400))
def test_shares_are_an_axis_one_after_another(length: int, other: int) -> None:
    found = [number for share in cut(length, other) for number in range(length)[share]]
    assert found == list(range(length))


@pytest.mark.parametrize(
    ("kind", "width", "K"), [("digits", 7, 1), ("digits", 5, 3), ("cifar", 2, 1), ("cifar", 1, 2)]
)
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.usefixtures("small")
def test_a_network_equals_learners_by_hand(kind: str, width: int, K: int, dropout: bool) -> None:
    """Values and gradients, with whatever comes before and behind its dense layers."""
    net, hand = make(kind, width, K)
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Looped(net.backbone, net.input_shape, K)
    assert net.executor.sharded
    row, x, noise, keep = net.initial([4])[0].double(), images(kind), None, None
    if dropout:
        noise = torch.randint(0, 256, (net.executor.noise_size(3),), generator=torch.Generator().manual_seed(2))
        noise = noise.to(torch.uint8)
        keep = keep_factors(net, noise, 3, kind, width)

    def ours(leaf: Tensor) -> Tensor:
        out = net.forward(leaf, x, head(0), noise=noise, own=True)
        assert out.own_logits is not None
        return mixed(out.logits, out.own_logits)

    def by_hand(leaf: Tensor) -> Tensor:
        return mixed(*hand.logits(leaf, x, 0, keep))

    torch.testing.assert_close(ours(row), by_hand(row), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient(row, ours), gradient(row, by_hand), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("small")
def test_the_bits_are_the_same_on_any_number_of_cores(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 9, 33, generator=generator).to(dtype).requires_grad_()
    w, b = torch.randn(2, 21, 33, generator=generator), torch.randn(2, 21, generator=generator)
    found: list[list[Tensor]] = []
    for cores in (1, 2, 3):
        with cpu_threads(cores):
            leaves = [x, w.clone().requires_grad_(), b.clone().requires_grad_()]
            y = sharded_linear(*leaves)
            assert y.dtype is dtype
            slopes = torch.autograd.grad(mixed(y.float()), leaves)
            assert [s.dtype for s in slopes] == [dtype, torch.float32, torch.float32]
            found.append([y.detach(), *slopes])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_gradients_go_to_their_place_and_each_learner_has_its_own() -> None:
    """Against sums over samples, inputs and outputs one by one."""
    generator = torch.Generator().manual_seed(1)
    x, w, b, slope = (
        torch.randn(*s, generator=generator).double() for s in ((2, 3, 5), (2, 4, 5), (2, 4), (2, 3, 4))
    )
    place = torch.full_like(w, torch.nan)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    y = sharded_linear(*leaves, place)
    dx, dw, db = torch.autograd.grad(y, leaves, slope)
    assert dw.data_ptr() == place.data_ptr()
    for k in range(2):
        for n in range(3):
            for o in range(4):
                value = b[k, o] + sum(x[k, n, i] * w[k, o, i] for i in range(5))
                assert y[k, n, o].item() == pytest.approx(value.item())
        for o in range(4):
            assert db[k, o].item() == pytest.approx(sum(slope[k, n, o] for n in range(3)).item())
            for i in range(5):
                expected = sum(slope[k, n, o] * x[k, n, i] for n in range(3)).item()
                assert dw[k, o, i].item() == pytest.approx(expected)
        for n in range(3):
            for i in range(5):
                expected = sum(slope[k, n, o] * w[k, o, i] for o in range(4)).item()
                assert dx[k, n, i].item() == pytest.approx(expected)


@pytest.mark.usefixtures("small")
def test_a_layer_without_biases_before_and_behind_layers_of_other_kinds() -> None:
    layers = nn.Sequential(
        nn.Flatten(), nn.Tanh(), nn.Linear(12, 6, bias=False), nn.GELU(), nn.Flatten(), nn.Linear(6, 5), nn.Tanh()
    )
    net = Net(layers, (3, 2, 2), (2,), dtype=torch.float64)
    net.executor = Looped(layers, (3, 2, 2), 1)
    row = net.initial([0])[0].double()
    x = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    for layer, name in ((layers[2], "2.weight"), (layers[5], "5.weight"), (layers[5], "5.bias")):
        setattr(layer, name[2:], nn.Parameter(net.layout.view(row, name)[0]))
    torch.testing.assert_close(net._features(row, x, None)[0], layers(x), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("small")
def test_gradients_of_a_run_are_written_where_they_are_wanted() -> None:
    net, _ = make("digits", 7, 1)
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = Looped(net.backbone, net.input_shape, 1)
    row, x = net.initial([4])[0].double(), images("digits")
    expected = gradient(row, lambda leaf: mixed(net.forward(leaf, x, head(0)).logits))
    room = torch.zeros_like(row)
    places = net.layout.views(room)
    leaves = Leaves({name: part.requires_grad_() for name, part in net.layout.views(row).items()}, places)
    value = mixed(net.forward(leaves, x, head(0)).logits)
    found = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values()), materialize_grads=True), strict=True))
    for name in ("dense1.weight", "dense2.weight"):
        assert found[name].data_ptr() == places[name].data_ptr()
        torch.testing.assert_close(places[name], net.layout.view(expected, name), rtol=1e-9, atol=1e-12)


def test_gradients_of_biases_are_added_up_in_their_own_type() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 300, 8, generator=generator).bfloat16()
    weight, bias = torch.randn(1, 4, 8, generator=generator), torch.zeros(1, 4, requires_grad=True)
    slope = torch.randn(1, 300, 4, generator=generator).bfloat16()
    (found,) = torch.autograd.grad(sharded_linear(x, weight, bias), [bias], slope)
    torch.testing.assert_close(found, slope.float().sum(1), rtol=1e-6, atol=1e-5)
