"""The same command gives the same numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import kenyon
from kenyon.errors import ConfigError
from kenyon.experiments.results import Result
from kenyon.utils.determinism import deterministic, is_deterministic
from tests.experiments.small import all_numbers, strengths_of, weights

METHODS = ["caf-ewc", "er", "pnc"]


def ran(out: Path, **more: bool) -> tuple[dict[str, str], dict[str, bytes]]:
    given = strengths_of(METHODS) | {"epochs": 2, "width": 2, "learners": 2, "batch": 64}
    results = kenyon.run("digits", METHODS, 2, tasks=2, fwt=False, device="cpu", out=out, **given, **more)
    return all_numbers(results), weights(out)


def test_on_a_cpu_they_repeat_bit_for_bit(tmp_path: Path) -> None:
    """Also with PyTorch's deterministic algorithms, which the origin of the result then names."""
    first = ran(tmp_path / "first")
    assert ran(tmp_path / "second") == first
    assert ran(tmp_path / "third", deterministic=True) == first
    for out, said in (("first", None), ("third", True)):
        assert [f.deterministic for f in Result.load(tmp_path / out / "digits/pnc/result.json").fleets] == [said]
    assert "deterministic" not in (tmp_path / "first/digits/pnc/result.json").read_text()
    assert not is_deterministic()


def test_images_can_be_trained_with_deterministic_algorithms(tmp_path: Path) -> None:
    """Convolutions and pooling."""
    given = {"epochs": 1, "width": 2, "learners": 2, "lambda_sp": 1.0, "lambda_af": 1e-4, "gamma": 0.02}
    asked = {"tasks": 1, "fwt": False, "device": "cpu"} | given
    first, second = (
        kenyon.run("digits-conv", "caf-ewc", 1, out=tmp_path / str(flag), deterministic=flag, **asked)
        for flag in (False, True)
    )
    assert all_numbers(first) == all_numbers(second)


def test_what_it_switches_on_and_off_again() -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    with deterministic(False):
        assert not is_deterministic() and (cudnn.deterministic, cudnn.benchmark) == before
    told = pytest.raises(ConfigError, match=r"--deterministic: put_ does not have.*Leave the option out")
    with told, deterministic(True):
        assert is_deterministic() and cudnn.deterministic and not cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
        raise RuntimeError("put_ does not have a deterministic implementation, but you set ...\nmore")
    assert not is_deterministic() and (cudnn.deterministic, cudnn.benchmark) == before
    with pytest.raises(RuntimeError, match="something else"), deterministic(True):
        raise RuntimeError("something else")


@pytest.mark.parametrize("warn_only", [False, True])
def test_what_a_user_had_asked_of_pytorch_holds_again(warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with deterministic(True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)
