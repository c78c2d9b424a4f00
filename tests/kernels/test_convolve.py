"""The CUDA kernels for learners of 1 to 70 channels: on a GPU as compiled, elsewhere on an emulated one.

How a layer is checked, against convolutions in float64 and in memory with guard zones, is in `test_convolutions`. All
addresses that reach these kernels begin at 16 bytes: what a layer leaves is a tensor of its own, with channels in
sixteens, and weights are taken out of the rows, wherever those begin, in the order of the kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kenyon.backends.cuda import compiler
from kenyon.backends.cuda.choices import choose_stages
from kenyon.backends.cuda.plan import Convolution
from tests.backends import emulation
from tests.backends.test_convolutions import check_layer, layer
from tests.kernels.cases import SOME


def layers() -> list[Convolution]:
    """One for each width, with every kind of layer among them: with and without pooling, ReLU, images as inputs."""
    found = []
    for number, width in enumerate(SOME):
        other, learners = SOME[(number * 7 + 3) % len(SOME)], (1, 3, 2)[number % 3] if width < 40 else 1
        first, side = number % 5 == 1, 16 if number % 5 == 1 else (8, 16)[number % 2]
        inputs = (1, 3)[number % 2] if first else min(other, 40)
        found.append(layer(side, learners, inputs, width, number % 2 == 0, first, number % 4 != 3))
    return found


def fits(c: Convolution, teams: bool) -> bool:
    """Return True if the kernels support the layer; others are computed by a library."""
    return choose_stages([(c, None)], teams) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("c", layers(), ids=lambda c: f"{c.learners}x{c.inputs}-{c.outputs}")
def test_layer_on_a_gpu(c: Convolution) -> None:
    if not torch.cuda.is_available() or not compiler.available(torch.device("cuda")):
        pytest.skip("needs a Hopper GPU and NVRTC")
    teams = compiler.has_teams(torch.device("cuda"))
    if not fits(c, teams):
        pytest.skip("the layer does not fit the kernels")
    check_layer(c, compiler.build, "cuda", teams, runs=3, batch=5)


@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("shape", [(8, 1, 8, 81, False, False), (8, 1, 33, 8, False, False)], ids=str)
def test_blocks_of_eight_channels_that_belong_to_no_learner(shape: tuple[Any, ...]) -> None:
    """The last of several parts of a layer then has fewer products than the others, forwards or backwards."""
    check_layer(layer(*shape), emulation.build, "cpu", batch=1)


@pytest.mark.torture
@pytest.mark.skipif(emulation.COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("c", layers(), ids=lambda c: f"{c.learners}x{c.inputs}-{c.outputs}")
def test_layer_on_an_emulated_gpu(c: Convolution) -> None:
    if not fits(c, True):
        pytest.skip("the layer does not fit the kernels")
    check_layer(c, emulation.build, "cpu", batch=2)


def test_most_widths_fit() -> None:
    assert sum(fits(c, True) for c in layers()) >= len(SOME) - 2


def samples() -> None:
    """A handful of awkward layers."""
    device = torch.device("cuda")
    if not compiler.available(device):
        return
    shapes: list[tuple[Any, ...]] = [
        (16, 3, 3, 7, True, True),
        (8, 3, 7, 7, True, False),
        (16, 2, 12, 12, False, False, True, (3, 9)),
        (16, 1, 64, 64, True, False, False, (4, 8)),
    ]
    for shape in shapes:
        check_layer(layer(*shape), compiler.build, "cuda", compiler.has_teams(device), batch=3)
