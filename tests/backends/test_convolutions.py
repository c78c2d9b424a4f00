"""The convolution kernels against PyTorch, layer by layer: on a GPU as compiled, elsewhere on an emulated one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kenyon.backends.cuda import compiler
from kenyon.backends.cuda.choices import choose_sharing, choose_tiling
from kenyon.backends.cuda.interface import Source, Target
from kenyon.backends.cuda.packing import backward_map, forward_map, gradient_map, taken_plain
from kenyon.backends.cuda.plan import Convolution, DenseTiling, Lines, Shape, Sharing, Tiling
from kenyon.random import keyed_words_plain
from tests.backends import emulation
from tests.kernels.guards import Guarded

Build = Callable[..., Any]
THRESHOLD, SCALE, FIRST_BYTE = 64, 256 / 192, 4096
PROCESSORS = 2  # few, so that blocks that stay have several tiles

# map, learners, inputs, outputs, pooled, first, whether there is a ReLU (True), the rows and columns that count (all)
SMALL: list[tuple[Any, ...]] = [  # one of every kind
    (16, 5, 3, 9, False, True),
    (8, 5, 9, 18, True, False),
    (16, 5, 20, 20, True, False),  # outputs in several slices, each with the inputs that it needs
    (32, 2, 3, 7, True, True),
    (8, 3, 7, 7, False, False, False),
    (16, 3, 1, 7, False, True, True, (3, 10)),
    (16, 2, 12, 12, False, False, True, (3, 9)),
    (16, 1, 64, 64, True, False, False, (4, 8)),
]
MORE: list[tuple[Any, ...]] = [  # compiling for an emulated GPU takes seconds each
    (16, 1, 32, 32, True, False),
    (16, 5, 9, 9, True, False),
    (8, 1, 64, 64, True, False),
    (8, 3, 20, 40, False, False),
    (8, 1, 64, 128, False, False),
    (16, 3, 1, 7, False, True),
    (16, 1, 1, 64, True, True, False),
    (8, 3, 7, 7, True, False, False),
    (8, 1, 64, 64, True, False, False),
    (8, 1, 64, 64, False, False, False),
    (16, 2, 12, 12, True, False, True, (4, 8)),
    (16, 1, 64, 64, False, False, True, (4, 8)),
]
LARGE: list[tuple[Any, ...]] = [
    *SMALL,
    *MORE,
    (32, 1, 32, 32, True, False),
    (32, 5, 9, 9, True, False),
    (16, 5, 18, 18, True, False),
    (16, 1, 64, 64, True, False),
    (8, 1, 128, 128, True, False),
    (8, 5, 36, 36, True, False),
    (8, 10, 20, 20, True, False),
    (8, 5, 72, 72, True, False),
    (8, 1, 256, 256, True, False),
    (64, 1, 3, 32, False, True),
    (32, 5, 1, 28, False, True, True, (3, 26)),
    (32, 5, 28, 28, True, False, True, (4, 24)),
    (16, 5, 28, 28, False, False, False, (3, 10)),
    (16, 5, 28, 28, True, False, False, (4, 8)),
    (32, 1, 1, 64, False, True),
    (32, 1, 64, 64, True, False),
    (32, 1, 64, 64, True, False, True, (4, 24)),
    (32, 1, 28, 28, True, False, True, (4, 24)),
    (16, 1, 28, 28, True, False, False, (4, 8)),
]


def layer(
    map: int,
    learners: int,
    inputs: int,
    outputs: int,
    pooled: bool,
    first: bool,
    relu: bool = True,
    rows: tuple[int, int] | None = None,
) -> Convolution:
    weights = learners * inputs * outputs * 9
    return Convolution(map, learners, inputs, outputs, pooled, first, 0, weights, relu, rows)


class Case:
    """A layer of some runs with random weights, inputs and gradients, and what PyTorch makes of them."""

    def __init__(self, c: Convolution, runs: int, batch: int, device: str) -> None:
        self.c, self.R, self.B, self.device = c, runs, batch, device
        g = torch.Generator().manual_seed(c.map + c.inputs)
        self.row = torch.randn(runs, c.bias + c.learners * c.outputs, generator=g) * 0.2
        self.keep: list[Any] = []
        self.memory = Guarded()
        side = c.map
        if c.first:
            pools = [torch.randint(0, 256, (5, side, side, 4), generator=g, dtype=torch.uint8) for _ in range(runs)]
            index = torch.randint(0, 5, (runs, batch), generator=g)
            gain, shift = torch.tensor([0.01, 0.02, 0.03])[: c.inputs], torch.tensor([-0.5, 0.1, 0.2])[: c.inputs]
            self.x = torch.stack([pools[r][index[r]][..., : c.inputs] * gain + shift for r in range(runs)]).bfloat16()
            pools, index = [p.to(device) for p in pools], index.to(device)
            places = torch.tensor([p.data_ptr() for p in pools], device=device)
            three = ctypes.c_float * 3
            self.source = Source(
                data=places.data_ptr(), index=index.data_ptr(), gain=three(*gain), shift=three(*shift)
            )
            self.keep += [pools, index, places]
        else:
            real = torch.randn(runs, batch, side, side, c.learners * c.inputs, generator=g)
            real = real.relu() if c.relu else real  # as if the layer before were of the same kind
            self.x = F.pad(real, (0, c.channels_in - real.shape[-1])).bfloat16()
            self.source = Source(data=self.on_device(self.x).data_ptr())
        self.keys = [torch.randint(-(2**31), 2**31 - 1, (runs,), generator=g, dtype=torch.int32) for _ in range(2)]
        # In float64, from the rounded weights and inputs that the kernels see.
        self.leaf_x = self.x.double().requires_grad_()
        self.leaf_row = self.row.bfloat16().double().requires_grad_()
        self.sums = torch.stack([self.one_run(r) for r in range(runs)])
        half = side // 2 if c.pooled else side
        self.out_shape = (runs, batch, half, half, c.channels_out)
        real = torch.randn(*self.out_shape[:-1], c.learners * c.outputs, generator=g)
        first, count = c.rows or (0, side)
        counts = torch.zeros(half, dtype=torch.bool)
        counts[first * half // side : (first + count) * half // side] = True
        self.counts = counts[:, None] & counts  # the pixels of the output that do
        real[:, :, ~self.counts] = 0.0
        self.gradient = F.pad(real, (0, c.channels_out - real.shape[-1])).bfloat16()

    def one_run(self, r: int) -> Tensor:
        c, outputs = self.c, []
        weights = self.leaf_row[r, : c.weight_count].view(c.learners, c.outputs, c.inputs, 3, 3)
        bias = self.row[r, c.bias :].double().view(c.learners, c.outputs)
        for k in range(c.learners):
            x = self.leaf_x[r] if c.first else self.leaf_x[r][..., k * c.inputs : (k + 1) * c.inputs]
            outputs.append(F.conv2d(x.permute(0, 3, 1, 2), weights[k], bias[k], padding=1).permute(0, 2, 3, 1))
        return F.pad(torch.cat(outputs, -1), (0, c.channels_out - c.learners * c.outputs))

    def on_device(self, x: Tensor) -> Tensor:
        there = x.to(self.device).contiguous()
        return self.memory.lay(there).copy_(there)

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.memory.lay(torch.empty(shape, dtype=dtype, device=self.device))

    def packed(self, places: Any) -> Tensor:
        return self.on_device(taken_plain(self.row, torch.from_numpy(places), torch.bfloat16))

    def convolve(
        self,
        build: Build,
        tiling: Tiling | DenseTiling,
        macros: dict[str, int],
        source: Source,
        maps: Any,
        to: Target,
    ) -> None:
        weights, row = self.packed(maps), self.on_device(self.row)
        kernel = build([(tiling.kernel, {**tiling.macros, **macros}, tiling.shared_bytes)])[0]
        arguments = (
            source,
            ctypes.c_void_p(weights.data_ptr()),
            ctypes.c_longlong(weights.shape[1]),
            ctypes.c_void_p(row.data_ptr() + 4 * self.c.bias),
            ctypes.c_longlong(row.shape[1]),
            to,
            ctypes.c_int(self.B),
        )
        kernel.launch(tiling.grid(self.B, self.R, PROCESSORS), tiling.threads, arguments)


def distance(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().cpu().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def check_layer(
    c: Convolution,
    build: Build,
    device: str,
    teams: bool = True,
    runs: int = 2,
    batch: int = 3,
    cut: Callable[[Any, Lines], Any] = lambda division, lines: division,
) -> None:
    """`cut` makes other tiles of those that were chosen for the lines that count."""
    tiling = cut(choose_tiling(Shape.forward(c), teams, c.rows), c.rows)
    sharing = cut(choose_sharing(Shape.forward(c), c.pooled, c.rows), c.rows)
    backward = None if c.first else cut(choose_tiling(Shape.backward(c), teams), None)
    case = Case(c, runs, batch, device)
    out = case.empty(*case.out_shape, dtype=torch.bfloat16)
    code = case.empty(*case.out_shape, dtype=torch.uint8)
    first, second = (case.on_device(k) for k in case.keys)
    target = Target(
        out.data_ptr(), code.data_ptr(), 0, first.data_ptr(), second.data_ptr(), THRESHOLD, SCALE, FIRST_BYTE
    )
    macros = {"SOURCE": int(c.first), "RESULT": int(c.pooled) + (0 if c.relu else 4)}
    case.convolve(build, tiling, macros, case.source, forward_map(c, tiling), target)
    y = case.sums.detach().relu() if c.relu else case.sums.detach()
    if c.pooled:
        check_pooling(case, y, out, code)
    else:
        assert distance(out[:, :, case.counts], y[:, :, case.counts]) < 3e-3
    assert bool(out.isfinite().all())  # also outside of the valid area
    check_gradients(case, build, sharing, backward, code.cpu())
    case.memory.check()


def check_pooling(case: Case, y: Tensor, out: Tensor, code: Tensor) -> None:
    """Largest of four, dropout by the bytes of the step's noise, and which pixel won."""
    size = case.out_shape[1:].numel() if isinstance(case.out_shape, torch.Size) else int(np.prod(case.out_shape[1:]))
    words = keyed_words_plain(*case.keys, (FIRST_BYTE + size) // 4)
    kept = words.view(torch.uint8)[:, FIRST_BYTE:].view(case.out_shape) >= THRESHOLD
    four = torch.stack([y[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)])
    four, kept, out, code = (x[..., case.counts, :] for x in (four, kept, out, code))
    assert distance(out, four.amax(0) * kept * SCALE) < 3e-3
    found = code.cpu().long()
    assert bool((found[~kept] == 4).all()) and bool((found <= 4).all())
    assert case.c.relu or bool((found[kept] < 4).all())
    won = four.gather(0, found.clamp(max=3).unsqueeze(0))[0]
    # Where two pixels round to the same bfloat16, either may win.
    ours = torch.where(found < 4, won, 0.0)
    torch.testing.assert_close(ours, four.amax(0) * kept, rtol=8e-3, atol=1e-6)


def check_gradients(
    case: Case, build: Build, sharing: Sharing, backward: Tiling | DenseTiling | None, code: Tensor
) -> None:
    c, dy = case.c, case.gradient.double()
    source = Source(data=case.on_device(case.gradient).data_ptr(), scale=SCALE)
    if c.pooled:
        source.code = case.on_device(code).data_ptr()
        scaled, dy = (case.gradient.float() * SCALE).bfloat16().double(), torch.zeros_like(case.sums)
        for place in range(4):
            dy[:, :, place // 2 :: 2, place % 2 :: 2] = torch.where(code == place, scaled, 0.0)
    dx, drow = torch.autograd.grad((case.sums * dy).sum(), [case.leaf_x, case.leaf_row])
    kind = 2 if c.pooled else 0
    if backward is not None:
        mask = case.on_device(case.x)
        for result, expected in ((2, dx), (3, dx * (case.x > 0)))[: 2 if c.relu else 1]:
            found = case.empty(*case.x.shape, dtype=torch.bfloat16)
            target = Target(data=found.data_ptr(), mask=mask.data_ptr())
            macros = {"SOURCE": kind, "RESULT": result}
            case.convolve(build, backward, macros, source, backward_map(c, backward), target)
            assert distance(found, expected) < 3e-3
    for blocks, stages in ((1, sharing.stages), (2, 1)):
        check_weights(case, build, replace(sharing, stages=stages), blocks, source, drow, dy.sum((1, 2, 3)))


def check_weights(
    case: Case, build: Build, sharing: Sharing, blocks: int, gradient: Source, drow: Tensor, dbias: Tensor
) -> None:
    c = case.c
    partial = case.empty(case.R, blocks, sharing.splits, sharing.record, dtype=torch.float32)
    biases = case.empty(case.R, blocks, c.channels_out, dtype=torch.float32)
    macros = {**sharing.macros, "SOURCE": int(c.first), "GRADIENT": 2 if c.pooled else 0}
    kernel = build([("weigh", macros, sharing.shared_bytes)])[0]
    arguments = (
        case.source,
        gradient,
        ctypes.c_void_p(partial.data_ptr()),
        ctypes.c_void_p(biases.data_ptr()),
        ctypes.c_int(case.B),
        ctypes.c_int(sharing.tiles.count(case.B)),
    )
    kernel.launch((blocks, sharing.all_groups // sharing.groups, case.R), sharing.threads, arguments)
    weights = partial.cpu().sum((1, 2))[:, torch.from_numpy(gradient_map(c, sharing))]
    assert distance(weights, drow[:, : c.weight_count]) < 5e-5  # sums of float32 over all pixels of an image
    real = c.learners * c.outputs
    assert distance(biases.cpu().sum(1)[:, :real], dbias[:, :real]) < 1e-5


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "shape", [*SMALL, *(pytest.param(shape, marks=pytest.mark.torture) for shape in MORE)], ids=str
)
def test_layer_on_an_emulated_gpu(shape: tuple[Any, ...]) -> None:
    check_layer(layer(*shape), emulation.build, "cpu")


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
def test_a_layer_of_one_learner_without_products_of_four_warps() -> None:
    check_layer(layer(16, 1, 32, 32, True, False), emulation.build, "cpu", teams=False)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_layer_on_a_gpu(shape: tuple[Any, ...]) -> None:
    if not torch.cuda.is_available() or not compiler.available(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU and NVRTC")
    check_layer(layer(*shape), compiler.build, "cuda", compiler.has_teams(torch.device("cuda")), runs=3, batch=21)


@pytest.mark.parametrize(
    ("learners", "width"), [(1, 32), (5, 9), (2, 20), (3, 13), (8, 6), (10, 5), (1, 64), (5, 36)]
)
def test_every_weight_is_packed_once(learners: int, width: int) -> None:
    """Whatever the number of learners: each weight lies in both packed orders and has one place among the sums."""
    for map, inputs, outputs, first in (
        (32, 3, width, True),
        (32, 1, width, True),
        (16, width, 2 * width, False),
        (8, 2 * width, width, False),
    ):
        c = layer(map, learners, inputs, outputs, True, first)
        tiling, sharing = choose_tiling(Shape.forward(c), True), choose_sharing(Shape.forward(c), c.pooled)
        assert tiling is not None and sharing is not None
        assert min(tiling.threads, sharing.threads) >= c.channels_in // 8  # each brings eight channels
        assert tiling.shared_bytes <= 227 * 1024 and sharing.shared_bytes <= 227 * 1024
        maps = [forward_map(c, tiling)]
        if not first:
            backward = choose_tiling(Shape.backward(c), True)
            assert backward is not None and backward.threads >= c.channels_out // 8
            maps.append(backward_map(c, backward))
        for places in maps:
            assert sorted(places[places >= 0]) == list(range(c.weight_count))
        assert len(set(gradient_map(c, sharing))) == c.weight_count
