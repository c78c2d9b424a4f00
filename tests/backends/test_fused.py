"""The fused kernels against their plain versions: on a GPU as compiled, elsewhere in Triton's interpreter."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kenyon.backends.triton import fused

SHAPES = [(2, 16, 2, 2), (3, 48, 6, 10), (2, 96, 8, 8), (5, 64, 4, 4), (1, 144, 4, 6), (2, 128, 4, 2)]
LARGE = [(256, 48, 32, 32), (250, 96, 16, 16), (256, 192, 8, 8), (256, 32, 32, 32), (7, 80, 18, 6)]
DTYPES = [torch.bfloat16, torch.float32]
Layer = Callable[[Tensor, Tensor], Tensor]


def inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str, coarse: bool) -> tuple[Tensor, Tensor]:
    """An input and a bias; coarse ones have many ties, and sums that bfloat16 holds exactly."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    bias = torch.randn(shape[1], generator=generator)
    if coarse:
        x, bias = (x * 4).round() / 4, (bias * 4).round() / 4
    x = x.to(device, dtype).contiguous(memory_format=torch.channels_last)
    return x.requires_grad_(), bias.to(device, dtype).requires_grad_()


def layers(shape: tuple[int, ...], device: str) -> Iterator[tuple[Layer, Layer]]:
    """(fused, plain) pairs."""
    B, C, H, W = shape
    noise = torch.randint(0, 256, (B, H // 2, W // 2, C), dtype=torch.uint8).to(device)
    yield (lambda x, b: fused.bias_relu(x.clone(), b)), fused.bias_relu_plain
    for drop in [(None, 0, 1.0), (noise, 64, 4 / 3), (noise, 128, 2.0)]:
        yield (
            lambda x, b, drop=drop: fused.bias_relu_pool_dropout(x, b, *drop),
            lambda x, b, drop=drop: fused.bias_relu_pool_dropout_plain(x, b, *drop),
        )


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New memory comes full of NaN, so that what a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(2).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def compare(shape: tuple[int, ...], dtype: torch.dtype, device: str, coarse: bool) -> None:
    x, rounded = inputs(shape, dtype, device, coarse)
    for kind in {dtype, torch.float32}:  # a network's biases have more digits than its maps
        compare_with(x, rounded.detach().to(kind).requires_grad_(), shape)


def compare_with(x: Tensor, bias: Tensor, shape: tuple[int, ...]) -> None:
    dtype, device = x.dtype, str(x.device)
    assert fused.available(x)
    original = x.detach().clone()
    for layer, plain in layers(shape, device):
        wanted = plain(x, bias)
        dy = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)  # NCHW
        dx_wanted, db_wanted = torch.autograd.grad(wanted, [x, bias], dy)
        for order in (torch.contiguous_format, torch.channels_last):
            with poisoned():
                y = layer(x, bias)
                dx, db = torch.autograd.grad(y, [x, bias], dy.contiguous(memory_format=order))
            assert y.is_contiguous(memory_format=torch.channels_last)
            assert dx.is_contiguous(memory_format=torch.channels_last)
            assert (y.dtype, dx.dtype, db.dtype) == (dtype, dtype, bias.dtype)
            ulp = 2**-7 if dtype == torch.bfloat16 else 1e-6
            torch.testing.assert_close(y, wanted, rtol=ulp, atol=0.0)
            torch.testing.assert_close(dx, dx_wanted, rtol=ulp, atol=0.0)
            # The gradient of the bias is the sum over dx, rounded once.
            total, size = dx.double().sum((0, 2, 3)), dx.double().abs().sum((0, 2, 3)).max().item()
            torch.testing.assert_close(db.double(), total, rtol=ulp, atol=1e-6 * size)
            torch.testing.assert_close(db, db_wanted, rtol=ulp, atol=ulp * size)
    assert torch.equal(x, original)  # the tests give bias_relu a copy; pooling leaves its input alone


def not_a_number(device: str) -> None:
    """A diverged run has to show, as it does in the plain versions."""
    x, bias = inputs((2, 16, 4, 4), torch.float32, device, coarse=True)
    with torch.no_grad():
        x[0, 3, 1, 2] = torch.nan
        x[1, 5] = -torch.inf
        x[1, 6, 0, 0] = torch.inf
    for layer, plain in layers((2, 16, 4, 4), device):
        wanted, y = plain(x, bias), layer(x, bias)
        torch.testing.assert_close(y, wanted, equal_nan=True)
        for one, other in zip(*(torch.autograd.grad(z.sum(), [x, bias]) for z in (y, wanted)), strict=True):
            # Where NaN decides, the gradient may go elsewhere in the window.
            windows = torch.nn.functional.avg_pool2d if one.ndim == 4 else lambda g, _: g
            torch.testing.assert_close(windows(one, 2), windows(other, 2), equal_nan=True)


def behind_convolution(device: str) -> None:
    """In place over the output of a convolution, and used twice further on."""
    torch.manual_seed(0)
    image = torch.randn(2, 16, 6, 6, device=device).contiguous(memory_format=torch.channels_last).requires_grad_()
    kernel = torch.randn(32, 16, 3, 3, device=device, requires_grad=True)
    bias = torch.randn(32, device=device, requires_grad=True)
    gradients = []
    for layer in (fused.bias_relu, fused.bias_relu_plain):
        x = torch.nn.functional.conv2d(image, kernel, None, padding=1)
        x = x.contiguous(memory_format=torch.channels_last)
        y = layer(x, bias)
        loss = (torch.nn.functional.conv2d(y, kernel.transpose(0, 1)) ** 2).mean() + y.sum()
        gradients.append(torch.autograd.grad(loss, [image, kernel, bias]))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def bounded_programs(device: str) -> None:
    """Several tiles for each program of a backward pass give the same as one."""
    before, fused.PROGRAMS = fused.PROGRAMS, 3
    try:
        compare((5, 48, 14, 14), torch.float32, device, coarse=False)
    finally:
        fused.PROGRAMS = before


def in_interpreter() -> None:
    for number, shape in enumerate(SHAPES):  # bfloat16 is cut off here instead of rounded: only coarse values
        compare(shape, DTYPES[number % 2], "cpu", coarse=number % 2 == 0)
    not_a_number("cpu")
    behind_convolution("cpu")
    bounded_programs("cpu")


def test_kernels_agree_with_plain_versions_in_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    # A process of its own: Triton decides when it is imported whether it interprets.
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_not_available_for_other_memory_or_shapes() -> None:
    assert not fused.available(torch.zeros(2, 16, 4, 4))  # not channels_last, and on a CPU
    assert not fused.available(torch.zeros(2, 20, 4, 4).contiguous(memory_format=torch.channels_last))
    assert not fused.available(torch.zeros(2, 16))


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES + LARGE)
@pytest.mark.parametrize("coarse", [False, True])
def test_kernels_agree_with_plain_versions(shape: tuple[int, ...], dtype: torch.dtype, coarse: bool) -> None:
    compare(shape, dtype, "cuda", coarse)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("check", [not_a_number, behind_convolution, bounded_programs])
def test_on_gpu(check: Callable[[str], None]) -> None:
    check("cuda")


@pytest.mark.gpu
@needs_gpu
def test_sums_repeat_exactly() -> None:
    x, bias = inputs((256, 48, 32, 32), torch.bfloat16, "cuda", coarse=False)
    for layer, _ in layers(tuple(x.shape), "cuda"):
        y = layer(x, bias)
        dy = torch.randn_like(y)
        first, *others = [torch.autograd.grad(layer(x, bias), bias, dy)[0] for _ in range(5)]
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(64, 48, 16, 16), (64, 192, 8, 8)])
def test_in_cuda_graph(shape: tuple[int, ...]) -> None:
    """A replayed graph sees new inputs and new noise, and overwrites everything."""
    B, C, H, W = shape
    x, bias = inputs(shape, torch.bfloat16, "cuda", coarse=False)
    noise = torch.zeros((B, H // 2, W // 2, C), dtype=torch.uint8, device="cuda")

    def work(relu: Layer, pool: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        y = pool(relu(x * 2, bias), bias, noise, 64, 4 / 3)
        return y.detach(), *torch.autograd.grad(y.float().square().sum(), [x, bias])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(fused.bias_relu, fused.bias_relu_pool_dropout)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work(fused.bias_relu, fused.bias_relu_pool_dropout)
    for _ in range(3):
        with torch.no_grad():
            x.normal_()
            bias.normal_()
            noise.random_(0, 256)
            for result in results:
                result.fill_(torch.nan)
        graph.replay()
        y, dx, db = work(fused.bias_relu_plain, fused.bias_relu_pool_dropout_plain)
        torch.testing.assert_close(results[0], y, rtol=2**-7, atol=0.0)
        torch.testing.assert_close(results[1], dx, rtol=2**-6, atol=0.0)
        torch.testing.assert_close(results[2], db, rtol=0.05, atol=0.5)


if __name__ == "__main__":
    in_interpreter()
