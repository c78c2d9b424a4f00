"""Parameters of modules on a GPU begin at aligned addresses, in the type that the modules compute in."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kenyon.backends import layout
from kenyon.backends.layout import ALIGNMENT, aligned
from kenyon.backends.torch.module import General
from kenyon.errors import ConfigError
from kenyon.models import Net
from tests.backends.test_zoo import trained, trainer_of
from tests.backends.zoo import ZOO

SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(K=st.integers(1, 4), shapes=SHAPES, offset=st.integers(0, 7), half=st.booleans(), seed=st.integers(0, 1000))
def test_every_learner_s_part_is_aligned_and_has_its_gradient(
    K: int, shapes: list[tuple[int, ...]], offset: int, half: bool, seed: int
) -> None:
    g, dtype = torch.Generator().manual_seed(seed), torch.bfloat16 if half else torch.float32
    sizes = [K * int(torch.Size(shape).numel()) for shape in shapes]
    row = torch.randn(offset + sum(sizes), generator=g).requires_grad_()
    parts = row[offset:].split(sizes)
    named = {str(n): part.view(K, *shape) for n, (part, shape) in enumerate(zip(parts, shapes, strict=True))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "needs_alignment", lambda _: True)
        found = aligned(named, dtype)
    slopes = {name: torch.randn(t.shape, generator=g).to(dtype) for name, t in named.items()}
    for name, t in named.items():
        assert torch.equal(found[name], t.to(dtype)) and found[name].dtype == dtype
        for learner in found[name]:
            assert learner.data_ptr() % ALIGNMENT == 0 and learner.is_contiguous()
    total = sum((found[n].float() * slopes[n].float()).sum() for n in found)
    assert isinstance(total, Tensor)
    expected = torch.cat([torch.zeros(offset), *(slopes[n].float().flatten() for n in named)])
    torch.testing.assert_close(torch.autograd.grad(total, row)[0], expected, rtol=0, atol=0)


def test_what_lies_well_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "needs_alignment", lambda _: True)
    tensors = {"w": torch.randn(3, 8, 4), "b": torch.randn(3, 4)}
    assert all(found is tensors[name] for name, found in aligned(tensors, torch.float32).items())


@pytest.mark.parametrize(
    "name", ["resnet-batchnorm-15", "batchnorm-dropout", "resnet-grouped-15", "text-sparse", "lstm", "experts"]
)
def test_training_with_aligned_parameters_is_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, so on a CPU, to the last bit."""
    expected = trainer_of(name, "caf-ewc")
    trained(expected)

    monkeypatch.setattr(layout, "needs_alignment", lambda _: True)
    found = trainer_of(name, "caf-ewc")
    trained(found)
    assert torch.equal(found.theta, expected.theta) and torch.equal(found.importance, expected.importance)


def fourier(**options: object) -> Net:
    backbone = ZOO["fft"]
    return Net(backbone.build(), backbone.shape, (2, 2), **options)  # type: ignore[arg-type]


def test_a_module_that_cannot_compute_in_bfloat16_uses_float32_and_says_so() -> None:
    """A CPU has no more of it here than a GPU."""
    net = fourier()
    net.dtype = torch.bfloat16
    net.executor = net._choose_executor()
    with pytest.warns(UserWarning, match=r"cannot compute in bfloat16 \(.*\): it uses float32"):
        net._try_out(torch.float32, chosen=False)
    assert net.dtype == torch.float32 and isinstance(net.executor, General)
    assert net.forward(net.initial([0])[0], torch.ones(3, 2, 19), torch.tensor([0])).logits.dtype == torch.float32


def test_bfloat16_that_was_chosen_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"cannot compute in bfloat16 \(.*\)\. Choose precision float32 or auto"):
        fourier(dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net(ZOO["layernorm-33"].build(), (11,), (2,), dtype=torch.bfloat16)


def test_a_module_that_does_not_compute_on_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = fourier()
    monkeypatch.setattr(Net, "_problem_with", lambda *_: "tensors on two devices")
    with pytest.raises(ConfigError, match=r"not on cpu \(tensors on two devices\)"):
        net._try_out(torch.float32, chosen=False)
