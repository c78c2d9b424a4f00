"""Single passes over rows against their plain versions: on a GPU as compiled, elsewhere in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.backends.cuda import packing as rows
from kenyon.backends.layers import DropoutSite
from kenyon.backends.optimizers import Adam, Sgd
from kenyon.backends.triton import dropout as units
from kenyon.backends.triton import heads, losses
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.updates import Force, QuadraticPull, WeightDecay
from kenyon.methods.importance import GradientImportance, fisher_large, mas
from kenyon.random import Noise
from kenyon.training.importance import add_importance
from tests.interpreter import DEVICE, INTERPRETED, interpreted

GROUPS = (torch.int8, torch.int16, torch.int32)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE)


def forces_of(R: int, P: int, kinds: str) -> list[Force]:
    found: list[Force] = []
    for number, kind in enumerate(kinds):
        if kind == "p":
            size = P - 7 * number - 3
            target = random(R, P, seed=number)[:, :size]
            found.append(QuadraticPull(random(R).abs() * 10, random(R, size, seed=9 + number).abs(), target))
        else:
            groups = torch.randint(-1, 4, (P,), generator=torch.Generator().manual_seed(P)).to(
                DEVICE, GROUPS[len(kinds) % 3]
            )
            found.append(WeightDecay(random(R, 4).abs(), groups))
    return found


@pytest.mark.kernels
@pytest.mark.parametrize("kinds", ["", "p", "d", "pd", "ppd"])
def test_adam_with_forces(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R, P = 3, 2500
    rate, forces = torch.tensor([0.1, 0.2, 0.3], device=DEVICE), forces_of(R, P, kinds)
    ends = []
    for plain in (False, True):
        monkeypatch.setattr(passes, "available", lambda x, plain=plain: not plain)
        adam, theta = Adam(torch.Size((R, P)), torch.device(DEVICE)), random(R, P, seed=5).clone()
        for step in range(4):
            gradient, moves = random(R, P, seed=step), torch.tensor([1.0, float(step % 2), 1.0], device=DEVICE)
            adam.step(theta, gradient, rate, moves, forces, keep=True)
        ends.append([theta, gradient, *adam.tensors().values()])
    for ours, expected in zip(*ends, strict=True):
        torch.testing.assert_close(ours, expected, rtol=5e-3, atol=2e-3)


@pytest.mark.kernels
@pytest.mark.parametrize("kinds", ["", "p", "ppd"])
def test_sgd_with_forces(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R, P = 3, 2500
    rate, forces = torch.tensor([0.1, 0.2, 0.3], device=DEVICE), forces_of(R, P, kinds)
    ends = []
    for plain in (False, True):
        monkeypatch.setattr(passes, "available", lambda x, plain=plain: not plain)
        sgd, theta = Sgd(torch.Size((R, P)), torch.device(DEVICE), 0.9), random(R, P, seed=5).clone()
        for step in range(4):
            gradient, moves = random(R, P, seed=step), torch.tensor([1.0, float(step % 2), 1.0], device=DEVICE)
            sgd.step(theta, gradient, rate, moves, forces, keep=True)
        ends.append([theta, gradient, sgd.velocity])
    for ours, expected in zip(*ends, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.kernels
@pytest.mark.parametrize("used", [[0], [2], [1, 3]])
@pytest.mark.parametrize("first", [1024, 1100])
@pytest.mark.parametrize("kind", [Adam, Sgd])
def test_what_is_idle_is_not_looked_at(
    kind: type, first: int, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four heads of two blocks. Where they begin with a block, idle ones hold something that would show."""
    R, each = 2, 2 * passes.BLOCK
    P = first + 4 * each + 50
    idle = passes.Idle(first, each, first + 4 * each, torch.tensor(used, device=DEVICE))
    still = torch.zeros(P, dtype=torch.bool, device=DEVICE)
    for head in set(range(4)) - set(used):
        still[first + head * each : first + (head + 1) * each] = True
    rate, moves, more = torch.tensor([0.1, 0.2], device=DEVICE), torch.ones(R, device=DEVICE), (0.9,) * (kind is Sgd)
    ends = []
    for plain in (False, True):
        monkeypatch.setattr(passes, "available", lambda x, plain=plain: not plain)
        optimizer, theta = kind(torch.Size((R, P)), torch.device(DEVICE), *more), random(R, P, seed=5).clone()
        for step in range(3):
            gradient = random(R, P, seed=step).masked_fill(still, torch.nan if first == 1024 and not plain else 0.0)
            optimizer.step(theta, gradient, rate, moves, keep=False, idle=idle)
        ends.append(theta.clone())
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-3)
    assert torch.equal(ends[0][:, still], random(R, P, seed=5)[:, still])
    monkeypatch.setattr(passes, "available", lambda x: True)
    decay = WeightDecay(torch.ones(R, 1, device=DEVICE), torch.zeros(P, dtype=torch.int8, device=DEVICE))
    optimizer.step(theta, torch.zeros_like(theta), rate, moves, [decay], keep=False, idle=idle)
    assert not torch.isclose(theta, ends[1], rtol=1e-6, atol=0).any()  # a decay moves them all


@pytest.mark.kernels
@pytest.mark.parametrize("importance", [fisher_large(), mas()], ids=lambda importance: importance.name)
@pytest.mark.parametrize("kinds", ["", "p", "d", "ppd"])
def test_importance_of_a_batch(kinds: str, importance: GradientImportance, monkeypatch: pytest.MonkeyPatch) -> None:
    """With penalties, for protected weights only; runs without batches left add nothing."""
    R, P, size = 3, 2500, 2100
    forces, share = forces_of(R, P, kinds), torch.tensor([0.1, 0.0, 0.3], device=DEVICE)
    ends = []
    for plain in (False, True):
        monkeypatch.setattr(passes, "available", lambda x, plain=plain: not plain)
        estimate = random(R, size, seed=7).abs().clone()
        for batch in range(3):
            gradient, theta = random(R, P, seed=batch).clone(), random(R, P, seed=5)
            add_importance(importance, estimate, gradient, theta, share, forces)
        ends.append(estimate)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ends[0][1], random(R, size, seed=7).abs()[1])


@pytest.mark.kernels
@pytest.mark.parametrize("shape", [(3, 70, 5), (40, 64), (2, 1, 1), (1, 300, 50)])
def test_weighted_cross_entropy(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with classes that are not there, and samples that do not count."""
    logits = 5 * random(*shape)
    logits[..., 2:3] = -1e9
    labels = torch.randint(0, min(2, shape[-1]), shape[:-1], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    weight = random(*shape[:-1], seed=3).relu()
    found = []
    for plain in (False, True):
        monkeypatch.setattr(losses, "available", lambda x, plain=plain: not plain)
        leaf = logits.clone().requires_grad_()
        value = losses.weighted_cross_entropy(leaf, labels, weight)
        scale = torch.arange(1.0, value.numel() + 1, device=DEVICE).view(value.shape)
        found.append((value.detach(), torch.autograd.grad((value * scale).sum(), leaf)[0]))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.kernels
@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no loops between numbers that a kernel has read")
def test_group_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    values, bounds = random(3, 70_000), torch.tensor([0, 1, 40, 2100, 69_000], device=DEVICE)
    monkeypatch.setattr(passes, "available", lambda x: True)
    ours = passes.group_squares(values, bounds)
    monkeypatch.setattr(passes, "available", lambda x: False)
    torch.testing.assert_close(ours, passes.group_squares(values, bounds))


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_taken(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values = random(3, 500)[:, :400]
    places = torch.randint(-1, 400, (1500,), generator=torch.Generator().manual_seed(1)).to(DEVICE, torch.int32)
    monkeypatch.setattr(rows, "available", lambda x: True)
    ours, expected = rows.taken(values, places, dtype), rows.taken_plain(values, places, dtype)
    # The interpreter cuts numbers off where a GPU rounds them.
    torch.testing.assert_close(ours, expected, rtol=0.01 if INTERPRETED else 0, atol=0)


@pytest.mark.kernels
@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no loops between numbers that a kernel has read")
def test_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = rows.Totals(2, [(3, 256), (40, 100), (1, 48), (130, 16), (7, 1024)], torch.device(DEVICE))
    buffer = totals.buffer()
    buffer.copy_(random(len(buffer)))
    monkeypatch.setattr(rows, "available", lambda x: True)
    torch.testing.assert_close(totals(buffer), rows.totals_plain(totals.pieces(buffer)))


@pytest.mark.kernels
@pytest.mark.parametrize("drops", [True, False])
def test_relu_dropout(drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    R, K, B, units_ = 2, 3, 5, 12
    site = DropoutSite(0.5, (48,), units_)
    noise = Noise.at(torch.tensor([3, 4], device=DEVICE), torch.tensor([6], device=DEVICE)) if drops else None
    x = random(R, K, B, units_).bfloat16()
    x[0, 0, 0, 0] = torch.nan
    results = []
    for plain in (False, True):
        monkeypatch.setattr(units, "available", lambda x, plain=plain: not plain)
        leaf = x.clone().requires_grad_()
        y = units.relu_dropout(leaf, noise, site, 64)
        results.append([y, torch.autograd.grad((y * random(R, K, B, units_, seed=3)).nansum(), leaf)[0]])
    for ours, expected in zip(*results, strict=True):
        there = torch.ones_like(ours, dtype=torch.bool)
        there[0, 0, 0, 0] = False
        torch.testing.assert_close(ours[there], expected[there])


@pytest.mark.kernels
@pytest.mark.parametrize(("B", "features", "classes"), [(40, 12, 5), (7, 256, 3)])
def test_own_logits(B: int, features: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    R, K = 2, 3
    f, w, b = random(R, K, B, features), random(R, classes, features), random(R, classes)
    results = []
    for plain in (False, True):
        monkeypatch.setattr(heads, "available", lambda x, plain=plain: not plain)
        leaves = [x.clone().requires_grad_() for x in (f, w, b)]
        y = heads.own_logits(*leaves)
        results.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
