from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.kernels import inventory, sanitize
from tests.kernels.inventory import KERNELS


def test_every_kernel_has_a_conformance_test() -> None:
    listed = [(kernel.file, kernel.name) for kernel in KERNELS]
    assert len(set(listed)) == len(listed)
    assert set(listed) == inventory.found()
    assert all((Path(__file__).parent / f"{kernel.test}.py").is_file() for kernel in KERNELS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_the_sanitizer_sees_has_every_kernel() -> None:
    launched = sanitize.run()
    assert {(kernel.file, kernel.name) for kernel in sanitize.expected()} <= launched
