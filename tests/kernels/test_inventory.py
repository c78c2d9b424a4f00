from __future__ import annotations

import json
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


@pytest.mark.parametrize("errors", [0, 3])
def test_what_the_sanitizer_says_is_recorded(errors: int, tmp_path: Path) -> None:
    program, record = tmp_path / "compute-sanitizer", tmp_path / "soundness.json"
    said = f"33 of 34 kernels ran on a GPU.\n========= ERROR SUMMARY: {errors} errors"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit {min(errors, 1)}\n")
    program.chmod(0o755)
    assert sanitize.watched(str(program), record) == min(errors, 1)
    found = json.loads(record.read_text())["sections"]["memcheck"]
    assert (found["kernels"], found["errors"]) == (33, errors)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_the_sanitizer_sees_has_every_kernel() -> None:
    launched = sanitize.run()
    assert {(kernel.file, kernel.name) for kernel in sanitize.expected()} <= launched
