"""Gradients of dense layers that are never written, against the same steps with gradients that are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kenyon.backends.layout import Factors
from kenyon.backends.optimizers import Adam, Optimizer, Sgd
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.updates import Force
from tests.backends.test_passes import forces_of, random
from tests.interpreter import DEVICE, interpreted

R, K, B = 2, 3, 20
# (start, outputs, inputs) of two layers, and the numbers of a row: all a multiple of eight, or nothing of the kind.
ROWS = {"aligned": (((1200, 24, 80), (7200, 16, 24)), 9000), "odd": (((13, 65, 70), (13703, 7, 5)), 14001)}


def optimizer(kind: type, P: int) -> Optimizer:
    made = kind(torch.Size((R, P)), torch.device(DEVICE), *(0.9,) * (kind is Sgd))
    assert isinstance(made, Optimizer)
    return made


def factors_of(place: tuple[int, int, int], theta: Tensor) -> Factors:
    start, O, I = place  # noqa: E741
    kept = Factors(
        start, random(R, K, B, O, seed=start), random(R, K, B, I, seed=9 + start), theta.new_zeros(R, K, O, I)
    )
    kept.read(theta)
    return kept


def moved(kind: type, rows: str, forces: list[Force], *, factored: bool, keep: bool) -> list[Tensor]:
    """Return the rows, momentum, last gradient and the layers' own weights after four steps."""
    places, P = ROWS[rows]
    theta, optimise = random(R, P, seed=5).clone(), optimizer(kind, P)
    rate = torch.tensor([0.1, 0.2], device=DEVICE)
    layers = [factors_of(place, theta) for place in places]
    for step in range(4):
        gradient, moves = random(R, P, seed=step).clone(), torch.tensor([1.0, float(step % 2)], device=DEVICE)
        for layer in layers:
            layer.store(random(*layer.dy.shape, seed=step), random(*layer.x.shape, seed=step))
            if factored:
                gradient[:, layer.start : layer.stop] = torch.nan  # is not read
            else:
                product = torch.einsum("rkbo,rkbi->rkoi", layer.dy, layer.x)
                gradient[:, layer.start : layer.stop] = product.flatten(1)
        optimise.step(theta, gradient, rate, moves, forces, keep=keep, factors=layers if factored else ())
    own = (
        [layer.weight for layer in layers]
        if factored
        else [theta[:, f.start : f.stop].view_as(f.weight) for f in layers]
    )
    seen = [gradient] if keep else []
    return [theta, *optimise.tensors().values(), *seen, *own]


@pytest.mark.kernels
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kinds", ["", "p", "d", "ppd"])
def test_one_pass_moves_weights_by_factors(rows: str, kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forces = forces_of(R, ROWS[rows][1], kinds)
    monkeypatch.setattr(passes, "available", lambda x: True)
    ours = moved(Sgd, rows, forces, factored=True, keep=False)
    monkeypatch.setattr(passes, "available", lambda x: False)
    expected = moved(Sgd, rows, forces, factored=False, keep=False)
    for mine, theirs in zip(ours, expected, strict=True):
        # Penalty gradients grow with the weights; a GPU multiplies float32 with 10 bits less.
        torch.testing.assert_close(mine, theirs, rtol=5e-3, atol=5e-3 * float(theirs.abs().max()))


@pytest.mark.parametrize("kind", [Sgd, Adam])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kinds", ["", "pppd"])
def test_who_cannot_multiply_writes_gradients_first(
    kind: type, keep: bool, kinds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is Sgd and not keep:  # which can, on a GPU
        monkeypatch.setattr(passes, "available", lambda x: False)
    forces = forces_of(R, ROWS["odd"][1], kinds)
    ours = moved(kind, "odd", forces, factored=True, keep=keep)
    expected = moved(kind, "odd", forces, factored=False, keep=keep)
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
