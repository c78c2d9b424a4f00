"""Windows and pooling by kernels against their plain versions: on a GPU as compiled, elsewhere in the interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from kenyon.backends.layers import padded, padded_to_eight
from kenyon.backends.triton import dense as products
from kenyon.backends.triton import pooling, windows
from kenyon.backends.triton.pooling import Maps
from kenyon.backends.triton.stacked import Stacked
from kenyon.backends.triton.windows import Geometry
from kenyon.models import Net, alexnet
from tests.interpreter import DEVICE, INTERPRETED, interpreted

# The interpreter cuts bfloat16 off where a GPU rounds it.
NEAR = {torch.float32: (1e-6, 1e-6), torch.bfloat16: (2**-6, 2**-6) if INTERPRETED else (2**-7, 1e-6)}


@contextlib.contextmanager
def poisoned(when: bool = True) -> Iterator[None]:
    """New memory comes full of NaN, so that what a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(when)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Multiples of 1/4, of which bfloat16 holds small sums exactly; there are many ties."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return ((drawn * 4).round() / 4).to(DEVICE, dtype)


def gradients(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad((y.float() * random(*y.shape, seed=7)).sum(), leaves)]


def same(ours: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == other.dtype
        rtol, atol = NEAR[one.dtype]
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


LAYERS = [
    # images, channels, height, width, kernel, stride, padding
    (5, 8, 3, 3, 3, 1, 1),
    (2, 16, 7, 7, 5, 1, 2),
    (3, 16, 8, 5, 3, 2, 0),
    (1, 8, 2, 2, 1, 1, 0),
    (4, 24, 5, 6, 2, 1, 1),
    (2, 8, 9, 7, 4, 3, 2),
    (1, 104, 3, 3, (3, 1), (1, 2), (1, 0)),
]


def geometry_of(kernel: int, stride: int, padding: int) -> Geometry:
    return Geometry.of(nn.Conv2d(1, 1, kernel, stride, padding))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", LAYERS, ids=str)
def test_windows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    N, C, H, W, *layer = shape
    geometry = geometry_of(*layer)
    results = []
    for function in (windows.windows, windows.windows_plain):
        leaf = random(N, C, H, W, dtype=dtype).requires_grad_()
        with poisoned(function is windows.windows):
            results.append(gradients(function(leaf, geometry), [leaf]))
    assert results[0][0].shape[1] == geometry.taps * C
    same(*results)


@pytest.mark.kernels
def test_windows_of_other_memory_or_channels() -> None:
    """Whatever the order in memory; without kernels where channels do not come in eights."""
    geometry = geometry_of(3, 1, 1)
    x = random(2, 8, 4, 4)
    turned = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(windows.windows(x, geometry), windows.windows(turned, geometry))
    odd = random(2, 5, 4, 4)
    assert torch.equal(windows.windows(odd, geometry), windows.windows_plain(odd, geometry))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 3, 2, 3, 3), (3, 10, 18, 5, 5), (3, 8, 16, 1, 2), (2, 1, 1, 1, 1)], ids=str)
def test_weights_in_the_order_of_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = random(*shape)
    inputs, outputs = padded_to_eight(shape[2]), padded_to_eight(shape[1])
    with poisoned():
        found = windows.packed(weight, inputs, outputs, dtype)
        assert torch.equal(windows.unpacked(found.float(), weight.shape), weight)
    assert torch.equal(found, windows.packed_plain(weight, inputs, outputs, dtype))
    buffer = torch.zeros(weight.numel() + 3, device=DEVICE)
    place = buffer[3:].view(weight.shape)
    assert windows.unpacked(found.float(), weight.shape, place) is place
    assert torch.equal(buffer[3:].view(weight.shape), weight) and not buffer[:3].any()


def maps_of(
    K: int, B: int, C: int, H: int, W: int, parted: bool, dtype: torch.dtype
) -> tuple[Maps, Tensor]:  # and the leaf
    real = random(B, K * C, H, W, dtype=dtype)
    data = nn.functional.pad(real, (0, 0, 0, 0, 0, padded(K * C) - K * C))
    made = Maps(data.contiguous(memory_format=torch.channels_last), K, C)
    made = made.split() if parted else made
    leaf = made.data.detach().requires_grad_()
    return Maps(leaf, K, C, parted), leaf


POOLS = [
    # learners, batch, channels, height, width, size, stride, relu
    (5, 3, 10, 7, 7, 3, 2, True),
    (2, 2, 8, 7, 7, 3, 2, False),
    (1, 4, 10, 6, 5, 2, 2, True),
    (3, 1, 17, 4, 5, 1, 1, True),
    (4, 2, 5, 3, 3, 3, 1, True),
    (5, 2, 3, 8, 9, 2, 3, False),
    (3, 2, 16, 3, 3, 3, 2, True),
    (2, 3, 4, 5, 5, 1, 1, False),
]


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("orders", ["joined", "joined to parted", "parted"])
@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_bias_relu_pool(
    shape: tuple[int, ...], orders: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    K, B, C, H, W, size, stride, relu = shape
    monkeypatch.setattr(pooling, "PROGRAMS", 3 if B == 3 else 528)  # several tiles for each program, and one
    results = []
    for function in (pooling.bias_relu_pool, pooling.bias_relu_pool_plain):
        x, leaf = maps_of(K, B, C, H, W, orders == "parted", dtype)
        bias = random(K, C, seed=3).requires_grad_()
        with poisoned(function is pooling.bias_relu_pool):
            y = function(x, bias, relu=bool(relu), size=size, stride=stride, split="to" in orders)
            assert y.is_split == (orders != "joined") and y.channels == C and y.learners == K
            assert y.data.is_contiguous(memory_format=torch.channels_last)
            whole = y.join().data
            assert not whole[:, K * C :].any()
            results.append(gradients(whole[:, : K * C], [leaf, bias]))
    if dtype is torch.bfloat16:  # here the plain version rounds sums of gradients, the kernel their total
        for result in results:
            result[2] = result[2].bfloat16()
    same(*results)


@pytest.mark.kernels
def test_not_a_number_shows() -> None:
    results = []
    for function in (pooling.bias_relu_pool, pooling.bias_relu_pool_plain):
        x, leaf = maps_of(2, 2, 8, 5, 5, False, torch.float32)
        with torch.no_grad():
            leaf[0, 3, 1, 2] = torch.nan
            leaf[1, 5] = -torch.inf
            leaf[1, 9, 0, 0] = torch.inf
        y = function(x, random(2, 8).requires_grad_(), relu=True, size=3, stride=2, split=True).data
        results.append([y.detach(), torch.autograd.grad(y.sum(), leaf)[0]])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.kernels
def test_a_network_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """AlexNet of a few learners, from the images to the gradients of all weights."""
    shape, K, B = (3, 63, 63), 2, 1
    backbone = alexnet(1, K)
    net = Net(backbone, shape, [3], learners=K, dtype=torch.float32, device=DEVICE)
    assert isinstance(net.backbone, nn.Sequential)
    net.executor = execute = Stacked(net.backbone, shape, K)
    images = random(B, *shape, seed=5)
    noise = torch.randint(0, 256, (execute.noise_size(B),), generator=torch.Generator().manual_seed(1))
    results = []
    for plain in (False, True):
        if plain:
            for module in (windows, pooling, products):
                monkeypatch.setattr(module, "available", lambda *_: False)
        row = net.initial([4])[0].requires_grad_()
        f = net._features(row, images, noise.to(DEVICE, torch.uint8))
        results.append([f.detach(), torch.autograd.grad((f * random(*f.shape)).sum(), row)[0]])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.kernels
@pytest.mark.parametrize(("K", "B", "outputs", "inputs"), [(2, 5, 70, 24), (1, 64, 8, 130), (3, 70, 16, 16)])
def test_the_gradient_of_weights_in_its_place(
    K: int, B: int, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "available", lambda x: True)
    dtype = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter has no products of bfloat16
    dy, x = random(K, B, outputs, dtype=dtype), random(K, B, inputs, dtype=dtype)
    buffer = torch.full((K * outputs * inputs + 1,), torch.nan, device=DEVICE)
    place = buffer[1:].view(K, outputs, inputs)
    assert products.weight_gradient(dy, x, place) is place and buffer[0].isnan()
    torch.testing.assert_close(place, products.weight_gradient(dy, x), rtol=1e-5, atol=1e-5)


def test_orders_of_maps() -> None:
    joined = random(2, padded(15), 3, 4)
    joined[:, 15:] = 0.0
    there = Maps(joined, 3, 5)
    parted = there.split()
    assert parted.data.shape == (6, 8, 3, 4) and not parted.data[:, 5:].any()
    assert torch.equal(parted.join().data, joined) and torch.equal(parted.flat(), there.flat())
    assert torch.equal(there.flat()[1, 0], joined[0, 5:10].flatten())
    assert parted.batch == there.batch == 2
    assert padded_to_eight(8) == 8 and padded_to_eight(9) == 16


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
