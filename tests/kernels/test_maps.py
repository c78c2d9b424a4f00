"""Kernels of maps and images: what follows convolutions, windows as rows, deeper pixels, crops and scaled images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kenyon.backends.layers import padded, padded_to_eight
from kenyon.backends.triton import fused, pooling, windows
from kenyon.backends.triton import strided as deepened
from kenyon.backends.triton.pooling import Maps
from kenyon.backends.triton.strided import SpaceToDepth
from kenyon.backends.triton.windows import Geometry
from kenyon.data.tasks import Crop
from kenyon.random import Noise
from kenyon.training import augmentation as bilinear
from kenyon.training import augmentation as cropping
from kenyon.training.augmentation import crop_plain
from tests.interpreter import DEVICE, INTERPRETED, interpreted
from tests.kernels.cases import FLOATS, SOME, ULP, bytes_, normal, offset_of, quarters, same
from tests.kernels.guards import Guarded

LAST = torch.channels_last


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(x.dtype)


def check_relu(B: int, C: int, H: int, W: int, dtype: torch.dtype) -> None:
    """relu(x + b) over x, of all channels that convolutions leave."""
    leaf = quarters(B, C, H, W, dtype=dtype).contiguous(memory_format=LAST).requires_grad_()
    cut_off = INTERPRETED and dtype is torch.bfloat16  # where a GPU rounds
    bias = (quarters if cut_off else normal)(C, seed=1).requires_grad_()
    x, b = leaf.detach().double(), rounded(bias.detach().double(), dtype)[:, None, None]
    expected = rounded(x + b, dtype).relu()
    slope = quarters(B, C, H, W, seed=2, dtype=dtype)  # in PyTorch's own order
    dx = slope.double() * (expected > 0)
    with Guarded() as memory:
        placed, own = memory.place(leaf), memory.place(bias, offset_of(C))
        assert fused.available(placed)
        found = fused.bias_relu(placed, own)
        mine, db = torch.autograd.grad(found, [leaf, bias], slope)
    same([found, mine], [expected, dx], rtol=ULP[dtype], atol=0)
    same(db, dx.sum((0, 2, 3)), rtol=1e-5, atol=1e-3)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_bias_and_relu(dtype: torch.dtype) -> None:
    for number, size in enumerate(SOME):  # channels as they are padded
        check_relu(1 + number % 3, padded(size), 1 + size % 9, 1 + number % 7, dtype)
    check_relu(2, padded(300), 3, 5, dtype)


def check_pool(B: int, C: int, h: int, w: int, dtype: torch.dtype, drops: bool) -> None:
    """Twice two pixels, their maximum, ReLU and dropout; of equals the first wins."""
    leaf = quarters(B, C, 2 * h, 2 * w, dtype=dtype).contiguous(memory_format=LAST).requires_grad_()
    bias, noise = quarters(C, seed=1).requires_grad_(), bytes_(B, h, w, C) if drops else None
    x, b = leaf.detach().double().requires_grad_(), bias.detach().double()[:, None, None]
    y = F.max_pool2d((x + b).relu(), 2)
    factor = (noise >= 64).movedim(-1, 1).double() * (4 / 3) if noise is not None else 1.0
    slope = quarters(B, C, h, w, seed=2, dtype=dtype)
    dx = torch.autograd.grad((y * factor * slope.double()).sum(), x)[0]
    with Guarded() as memory:
        placed, own = memory.place(leaf), memory.place(bias, offset_of(C))
        chance = None if noise is None else memory.place(noise, offset_of(h))
        found = fused.bias_relu_pool_dropout(placed, own, chance, 64, 4 / 3)
        mine, db = torch.autograd.grad(found, [leaf, bias], slope)
    same([found, mine], [y * factor, dx], rtol=ULP[dtype], atol=0)
    same(db, mine.double().sum((0, 2, 3)), rtol=1e-4, atol=1e-3)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_bias_relu_pool_dropout(dtype: torch.dtype) -> None:
    for number, size in enumerate(SOME[::2]):
        check_pool(1 + number % 3, padded(size), 1 + size % 5, 1 + number % 4, dtype, number % 3 > 0)


def maps_of(memory: Guarded, leaf: Tensor, K: int, C: int, parted: bool) -> Maps:
    """Maps as convolutions leave them, of a leaf (B, K * C, H, W)."""
    wide = F.pad(leaf, (0, 0, 0, 0, 0, padded(K * C) - K * C)).contiguous(memory_format=LAST)
    joined = Maps(wide, K, C)
    whole = joined.split() if parted else joined
    return Maps(memory.place(whole.data), K, C, parted)


def check_pooling(
    K: int, B: int, C: int, sides: tuple[int, int], size: int, stride: int, relu: bool, order: str, dtype: torch.dtype
) -> None:
    """max over windows of relu(x + b) for every learner, in either order of memory."""
    leaf = quarters(B, K * C, *sides, dtype=dtype).requires_grad_()
    bias = quarters(K, C, seed=1).requires_grad_()
    x, b = leaf.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    y = x + b.view(-1, 1, 1)
    y = F.max_pool2d(y.relu() if relu else y, size, stride)
    slope = quarters(*y.shape, seed=2, dtype=dtype)
    theirs = torch.autograd.grad((y * slope.double()).sum(), [x, b])
    with Guarded() as memory:
        maps = maps_of(memory, leaf, K, C, order == "parted")
        own = memory.place(bias, offset_of(C))
        assert pooling.available(maps, size)
        found = pooling.bias_relu_pool(maps, own, relu=relu, size=size, stride=stride, split=order == "part")
        assert found.is_split == (order != "joined")
        whole = found.join().data
        mine, db = torch.autograd.grad(whole[:, : K * C], [leaf, bias], slope)
    assert not whole[:, K * C :].any()
    same([whole[:, : K * C], mine], [y, theirs[0]], rtol=2 * ULP[dtype], atol=ULP[dtype])
    same(db, theirs[1], rtol=1e-4, atol=1e-3 if dtype is torch.float32 else 0.5)


POOLS = [(1, 1, True), (2, 2, True), (3, 2, True), (3, 1, False), (2, 3, True), (5, 4, False), (1, 1, False)]


@pytest.mark.kernels
@pytest.mark.parametrize("part", range(3))
def test_bias_relu_and_any_pooling(part: int) -> None:
    for number, C in enumerate(SOME):
        if number % 3 != part:
            continue
        size, stride, relu = POOLS[number % len(POOLS)]
        sides = (size + number % 5, size + C % 6)
        K, order = (1, 2, 3, 5)[number % 4], ("joined", "part", "parted")[(number // 3) % 3]
        check_pooling(K, 1 + number % 2, C, sides, size, stride, relu, order, FLOATS[(number // 2) % 2])


def check_windows(N: int, C: int, sides: tuple[int, int], geometry: Geometry, dtype: torch.dtype) -> None:
    """Row (n, i, j) holds x[n, :, i s + u - p, j t + v - q] at tap (u, v), and the way back adds them up."""
    (h, w), (s, t), (p, q) = geometry.kernel, geometry.stride, geometry.padding
    leaf = normal(N, C, *sides, dtype=dtype).requires_grad_()
    x = leaf.detach().double().requires_grad_()
    unfolded = F.unfold(x, (h, w), padding=(p, q), stride=(s, t))  # (N, C * h * w, places)
    expected = unfolded.unflatten(1, (C, h * w)).permute(0, 3, 2, 1).flatten(0, 1).flatten(1)
    slope = normal(*expected.shape, seed=3, dtype=dtype)
    [theirs] = torch.autograd.grad((expected * slope.double()).sum(), x)
    with Guarded() as memory:
        placed = memory.place(leaf.contiguous(memory_format=LAST))
        assert windows.available(placed) and C % 8 == 0
        found = windows.windows(placed, geometry)
        [mine] = torch.autograd.grad(found, leaf, memory.place(slope))
    assert torch.equal(found.double(), expected)
    same(mine, theirs, rtol=2 * ULP[dtype], atol=ULP[dtype] * float(theirs.abs().max()))


LAYERS = [  # kernel, stride, padding
    ((1, 1), (1, 1), (0, 0)),
    ((3, 3), (1, 1), (1, 1)),
    ((3, 3), (2, 2), (0, 0)),
    ((5, 5), (2, 1), (2, 2)),
    ((2, 7), (1, 3), (1, 0)),
    ((4, 4), (5, 5), (1, 3)),
    ((11, 11), (4, 4), (2, 2)),
    ((1, 3), (3, 1), (0, 1)),
    ((9, 1), (1, 2), (4, 0)),
]


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_windows(dtype: torch.dtype) -> None:
    for number, layer in enumerate(LAYERS):
        geometry = Geometry(*layer)
        sides = tuple(k + 1 + number % 4 for k in geometry.kernel)
        check_windows(1 + number % 3, padded_to_eight(SOME[number * 2]), (sides[0], sides[1] + 1), geometry, dtype)


def check_packed(K: int, O: int, I: int, h: int, w: int, dtype: torch.dtype) -> None:  # noqa: E741
    weight, inputs, outputs = normal(K, O, I, h, w), padded_to_eight(I), padded_to_eight(O)
    expected = torch.zeros(K, outputs, h, w, inputs, device=DEVICE)
    expected[:, :O, ..., :I] = weight.permute(0, 1, 3, 4, 2)
    with Guarded() as memory:
        found = windows.packed(memory.place(weight, offset_of(O)), inputs, outputs, dtype)
        same(found, expected.flatten(2), rtol=ULP[dtype], atol=0)
        place = memory.lay(weight, offset_of(I))
        rows = memory.place(expected.flatten(2))
        assert windows.unpacked(rows, weight.shape, place) is place
        assert torch.equal(place, weight)


@pytest.mark.kernels
def test_weights_in_the_order_of_rows() -> None:
    for number, size in enumerate(SOME):
        other, sides = SOME[-1 - number], ((1, 1), (3, 3), (2, 5), (1, 7))[number % 4]
        check_packed(1 + number % 3, size, min(other, 33), *sides, FLOATS[number % 2])


def check_deepened(layer: nn.Conv2d, more: int, sides: tuple[int, int], dtype: torch.dtype, last: bool) -> None:
    """A convolution of deeper pixels is the convolution; every pixel of theirs is one of the image, or zero."""
    deep = SpaceToDepth.of(layer)
    assert deep is not None
    x = normal(2, layer.in_channels + more, *sides, dtype=dtype)
    x = x.contiguous(memory_format=LAST) if last else x
    with Guarded() as memory:
        placed = memory.place(x, offset_of(sides[0]))
        assert deepened._available(placed)
        found = deep.images(placed)
    weight = normal(3, layer.in_channels, *layer.kernel_size, seed=1).double()
    kernel = deep.weights(weight).flatten(3).permute(0, 3, 1, 2)
    expected = F.conv2d(x[:, : layer.in_channels].double(), weight, None, layer.stride, layer.padding)
    same(F.conv2d(found.double(), kernel), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", FLOATS)
def test_deeper_pixels(dtype: torch.dtype) -> None:
    for number, side in enumerate(SOME):
        window, stride, padding = ((2, 2, 0), (3, 2, 1), (11, 4, 2), (5, 3, 4), (8, 5, 0))[number % 5]
        if side + 2 * padding < window:
            continue
        layer = nn.Conv2d(1 + number % 4, 3, window, stride, padding)
        check_deepened(layer, (0, 5, 7)[number % 3], (side, side + number % 4), dtype, number % 2 > 0)


def check_cropped(runs: int, B: int, H: int, W: int, C: int, padding: int, flip: bool) -> None:
    """Against the plain version, which is held against Pillow."""
    pool, keys = bytes_(5, H, W, C), torch.arange(runs, device=DEVICE) * 2**33 + 17
    index = torch.randint(0, 5, (runs, B), generator=torch.Generator().manual_seed(H)).to(DEVICE)
    noise, view = Noise.at(keys, torch.tensor([7], device=DEVICE)), Crop(padding, flip)
    with Guarded() as memory:
        images, places = memory.place(pool, offset_of(C)), memory.place(index, 1)
        assert cropping.available(images)
        found = cropping.cropped(view, images, places, noise)
    assert torch.equal(found, crop_plain(view, pool, index, noise))


@pytest.mark.kernels
def test_random_windows() -> None:
    for number, C in enumerate(SOME):
        side = SOME[(number * 5) % len(SOME)]
        check_cropped(1 + number % 3, 1 + number % 4, side, 1 + (side + number) % 9, C, number % 5, number % 2 > 0)


def check_bilinear(images: int, H: int, W: int, C: int) -> None:
    """Each pixel is the mean of four, weighted by how near they are, and rounded."""
    chance = torch.Generator().manual_seed(H + W)
    high, broad = 12, 9
    pixels = bytes_(high * broad, C)

    def between(count: int, steps: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.randint(0, steps, (images, count), generator=chance)
        weight = torch.rand(images, count, generator=chance)
        return (one * step).to(DEVICE), ((one + 1).clamp(max=steps - 1) * step).to(DEVICE), weight.to(DEVICE)

    (upper, lower, down), (left, right, across) = rows, columns = between(H, high, broad), between(W, broad, 1)
    with Guarded() as memory:
        placed = memory.place(pixels, offset_of(C))
        assert bilinear.bilinear_available(placed)
        found = bilinear.bilinear(placed, rows, columns)

    def at(row: Tensor, column: Tensor) -> Tensor:
        return pixels[row[:, :, None] + column[:, None, :]].double()

    a, d = across.double()[:, None, :, None], down.double()[:, :, None, None]
    expected = (1 - d) * ((1 - a) * at(upper, left) + a * at(upper, right))
    expected += d * ((1 - a) * at(lower, left) + a * at(lower, right))
    assert float((found.double() - expected).abs().max()) <= 0.5001


@pytest.mark.kernels
def test_scaled_windows() -> None:
    for number, C in enumerate(SOME):
        check_bilinear(1 + number % 3, SOME[(number * 5) % len(SOME)], SOME[-1 - number], C)


def samples() -> None:
    """A handful of awkward sizes of every kernel here."""
    for dtype in FLOATS:
        check_relu(2, padded(33), 5, 3, dtype)
        check_pool(3, padded(17), 3, 1, dtype, True)
        check_pooling(3, 2, 17, (7, 6), 3, 2, True, "part", dtype)
        check_pooling(2, 1, 21, (5, 5), 2, 3, False, "parted", dtype)
        check_windows(2, 40, (7, 9), Geometry((5, 5), (2, 1), (2, 2)), dtype)
    check_packed(2, 33, 21, 3, 3, torch.bfloat16)
    check_deepened(nn.Conv2d(3, 4, 11, 4, 2), 5, (33, 21), torch.bfloat16, True)
    check_cropped(2, 3, 33, 7, 3, 4, True)
    check_bilinear(2, 33, 17, 3)


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
