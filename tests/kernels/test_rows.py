"""Passes over rows: optimisers, importance, sums of squares, random words, packing, factors.

References are the equations in float64. Rows of P numbers begin at any multiple of P, and their memory at any number.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from kenyon import random as hashing
from kenyon.backends.cuda import packing as rows
from kenyon.backends.layout import Factors
from kenyon.backends.optimizers import Adam, Sgd
from kenyon.backends.triton import factors
from kenyon.backends.triton import updates as passes
from kenyon.backends.triton.updates import Force, Idle, PullOperands, QuadraticPull, WeightDecay
from kenyon.methods.importance import fisher_large
from kenyon.training.importance import add_importance
from tests.interpreter import DEVICE, INTERPRETED, interpreted
from tests.kernels.cases import ALL, ULP, normal, offset_of, same
from tests.kernels.guards import Guarded

R = 3
LONG = (1023, 1024, 1025, 2100)  # around the block of a program
SPLIT = (7, 33, 64, 70, *LONG)
BETAS, EPSILON, MOMENTUM = (0.9, 0.999), 1e-8, 0.9

NO_LOOPS = pytest.mark.skipif(INTERPRETED, reason="the interpreter has no loops between numbers a kernel has read")

Forces = tuple[list[tuple[Tensor, Tensor, Tensor]], tuple[Tensor, Tensor] | None]


def forces_of(memory: Guarded, kinds: str, P: int, offset: int) -> Forces:
    """Up to two pulls, the first on fewer numbers than a row has, and a decay of some groups."""
    pulls = []
    for number in range(kinds.count("p")):
        size = P if number else max(1, P - 3)
        weight = memory.place(normal(R, size, seed=11 + number).abs(), offset)
        target = memory.place(normal(R, P, seed=21 + number), offset)[:, :size]
        pulls.append((normal(R, seed=number).abs(), weight, target))
    if "d" not in kinds:
        return pulls, None
    chance = torch.Generator().manual_seed(P)
    kind = {70: torch.int16, 1025: torch.int32}.get(P, torch.int8)  # each is compiled for itself
    groups = torch.randint(-1, 4, (P,), generator=chance).to(DEVICE, kind)
    return pulls, (normal(R, 4, seed=5).abs(), memory.place(groups, offset))


def forced(gradient: Tensor, theta: Tensor, forces: Forces) -> Tensor:
    """g + sum_i s_i w_i (theta - t_i) + d theta, in float64."""
    found, theta = gradient.double().clone(), theta.double()
    for strength, weight, target in forces[0]:
        n = weight.shape[1]
        found[:, :n] += strength.double()[:, None] * weight.double() * (theta[:, :n] - target.double())
    if forces[1] is not None:
        rates, groups = forces[1][0].double(), forces[1][1].long()
        found += torch.where(groups >= 0, rates[:, groups.clamp(min=0)], 0.0) * theta
    return found


def rates_and_moves() -> tuple[Tensor, Tensor]:
    return torch.tensor([0.1, 0.2, 0.3], device=DEVICE), torch.tensor([1.0, 0.0, 1.0], device=DEVICE)


def check_adam(P: int, kinds: str, keep: bool, offset: int) -> None:
    rate, moves = rates_and_moves()
    with Guarded() as memory:
        theta, gradient, first = (memory.place(normal(R, P, seed=seed), offset) for seed in range(3))
        second = memory.place(normal(R, P, seed=3).square(), offset)
        steps = torch.tensor([[1.0], [0.0], [7.0]], device=DEVICE)
        forces = forces_of(memory, kinds, P, offset)
        g, x, m, v = forced(gradient, theta, forces), *(t.double() for t in (theta, first, second))
        mine = moves.double()[:, None]
        new_m = m + mine * (BETAS[0] * m + (1 - BETAS[0]) * g - m)
        new_v = v + mine * (BETAS[1] * v + (1 - BETAS[1]) * g * g - v)
        t = steps.double().clamp(min=1)
        direction = (new_m / (1 - BETAS[0] ** t)) / ((new_v / (1 - BETAS[1] ** t)).sqrt() + EPSILON)
        new_x, before = x - rate.double()[:, None] * mine * direction, gradient.clone()
        passes.adam(
            theta, gradient, first, second, rate, moves, steps, BETAS, EPSILON, *forces, keep=keep
        )  # fmt: skip
        same([first, second], [new_m, new_v], rtol=1e-5, atol=1e-5)
        same(theta, new_x, rtol=1e-4, atol=2e-3)  # a GPU's logarithm of 0.999 has few digits
        same(gradient, g if keep else before)


def check_sgd(P: int, kinds: str, keep: bool, offset: int) -> None:
    rate, moves = rates_and_moves()
    with Guarded() as memory:
        theta, gradient, velocity = (memory.place(normal(R, P, seed=seed), offset) for seed in range(3))
        forces = forces_of(memory, kinds, P, offset)
        g, x, v = forced(gradient, theta, forces), theta.double(), velocity.double()
        mine = moves.double()[:, None]
        new_v = v + mine * (g + MOMENTUM * v - v)
        new_x, before = x - rate.double()[:, None] * mine * new_v, gradient.clone()
        without = [(P // 3, P // 2)] if P in SPLIT else []  # what others move stays as it is
        for first, last in without:
            new_v[:, first:last], new_x[:, first:last] = v[:, first:last], x[:, first:last]
            g[:, first:last] = before[:, first:last].double()
        passes.sgd(theta, gradient, velocity, rate, moves, MOMENTUM, *forces, keep=keep, excluded=without)
        same([theta, velocity, gradient], [new_x, new_v, g if keep else before.double()], rtol=1e-5, atol=2e-5)


def check_importance(P: int, kinds: str, square: bool, offset: int) -> None:
    size, share = max(1, P - 2), torch.tensor([0.5, 0.0, 0.25], device=DEVICE)
    with Guarded() as memory:
        theta, gradient = (memory.place(normal(R, P, seed=seed), offset) for seed in range(2))
        estimate = memory.place(normal(R, size, seed=2).abs(), offset)
        forces = forces_of(memory, kinds, P, offset)
        g = forced(gradient, theta, forces)[:, :size]
        expected = estimate.double() + 3.0 * share.double()[:, None] * (g.square() if square else g.abs())
        passes.add_importance(estimate, gradient, theta, share, *forces, factor=3.0, square=square)
        same(estimate, expected)


@pytest.mark.kernels
@pytest.mark.parametrize(("kinds", "keep"), [("", True), ("ppd", False), ("p", True)])
def test_adam(kinds: str, keep: bool) -> None:
    for P in (*ALL, *LONG):
        check_adam(P, kinds, keep, offset_of(P))
    for P in (5, 64):
        check_adam(P, kinds, keep, 0)


@pytest.mark.kernels
@pytest.mark.parametrize(("kinds", "keep"), [("", False), ("ppd", True), ("d", False)])
def test_sgd(kinds: str, keep: bool) -> None:
    for P in (*ALL, *LONG):
        check_sgd(P, kinds, keep, offset_of(P))
    for P in (5, 64):
        check_sgd(P, kinds, keep, 0)


@pytest.mark.kernels
@pytest.mark.parametrize(("kinds", "square"), [("", True), ("ppd", True), ("p", False)])
def test_importance(kinds: str, square: bool) -> None:
    for P in (*ALL, *LONG):
        check_importance(P, kinds, square, offset_of(P))
    for P in (5, 64):
        check_importance(P, kinds, square, 0)


def check_layouts(kind: str) -> None:
    """Somebody's own penalty may give parts of larger tensors, turned ones, or one row for all runs."""
    P, n = 70, 33
    rate, moves = rates_and_moves()
    forces: list[Force] = [
        QuadraticPull(torch.tensor([2.0], device=DEVICE), normal(R, P)[:, 3 : 3 + n].abs(), normal(n, R).T),
        QuadraticPull(normal(R, 2)[:, 1].abs(), normal(1, n).abs(), torch.zeros(1, 1, device=DEVICE)),
        WeightDecay(normal(1, 4).abs(), torch.arange(2 * P, device=DEVICE)[::2] % 4),
    ]
    theta, gradient = normal(R, P), normal(R, P, seed=1)
    wanted = gradient.clone()
    for force in forces:
        force.add_to(wanted, theta)
    if kind == "importance":
        estimate, share = torch.zeros(R, n, device=DEVICE), torch.ones(R, device=DEVICE)
        add_importance(fisher_large(), estimate, gradient, theta, share, forces)
        same(estimate, fisher_large().numerator * wanted[:, :n].square())
    else:
        shape, device = torch.Size((R, P)), torch.device(DEVICE)
        optimizer = Adam(shape, device) if kind == "adam" else Sgd(shape, device, MOMENTUM)
        optimizer.step(theta, gradient, rate, moves, forces, keep=True)
        same(gradient, wanted)


@pytest.mark.kernels
@pytest.mark.parametrize("kind", ["adam", "sgd", "importance"])
def test_forces_in_any_layout(kind: str) -> None:
    check_layouts(kind)


def check_idle(each: int, kind: str) -> None:
    """Heads that do not move are not looked at where a whole block lies in them; theirs would be NaN."""
    P, first, used = 5 + 3 * each + 4, 5, [1]
    rate, moves = rates_and_moves()
    with Guarded() as memory:
        theta, gradient, *state = (memory.place(normal(R, P, seed=seed).abs(), 3) for seed in range(4))
        idle = Idle(first, each, first + 3 * each, torch.tensor(used, device=DEVICE))
        inside = slice(first + 2 * each + passes.BLOCK, first + 3 * each - passes.BLOCK)
        gradient[:, inside] = torch.nan
        before = theta.clone()
        if kind == "adam":
            steps = torch.ones(R, 1, device=DEVICE)
            passes.adam(
                theta, gradient, *state, rate, moves, steps, BETAS, EPSILON, [], None, keep=False, idle=idle
            )  # fmt: skip
        else:
            passes.sgd(theta, gradient, state[0], rate, moves, MOMENTUM, [], None, keep=False, idle=idle)
        assert torch.equal(theta[:, inside], before[:, inside]) and bool(theta.isfinite().all())
        moved = slice(first + each, first + 2 * each)
        assert bool((theta[0, moved] != before[0, moved]).all()) and torch.equal(theta[1], before[1])


@pytest.mark.kernels
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_what_is_idle(kind: str) -> None:
    for each in (2500, 3001):
        check_idle(each, kind)


def check_squares(sizes: list[int], offset: int) -> None:
    ends = [0, *np.cumsum(sizes).tolist()]
    with Guarded() as memory:
        values = memory.place(normal(2, ends[-1] + 3), offset)
        found = passes.group_squares(values, torch.tensor(ends, device=DEVICE))
        expected = [values[:, a:b].double().square().sum(1) for a, b in pairwise(ends)]
        same(found, torch.stack(expected, dim=1), rtol=1e-5)


@pytest.mark.kernels
@NO_LOOPS
def test_group_squares() -> None:
    check_squares(list(ALL), 3)
    for size in (1, 7, 70, 40_000):
        check_squares([size, 1, size], offset_of(size))


def mixed(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def check_words(count: int, start: int) -> None:
    chance = torch.Generator().manual_seed(count)
    first, second = (torch.randint(-(2**31), 2**31, (R,), generator=chance).int() for _ in range(2))
    with Guarded() as memory:
        keys = [memory.place(key.to(DEVICE), 1) for key in (first, second)]
        if INTERPRETED:
            found = torch.empty(R, count, dtype=torch.int32)
            hashing._words[(-(-count // hashing.BLOCK), R)](*keys, found, count, start, hashing.BLOCK)
        else:
            found = hashing.keyed_words(*keys, count, start)
    for run in range(R):
        a, b = int(first[run]), int(second[run])
        for n in {0, count // 2, count - 1}:
            word = mixed(mixed((start + n + a) & 0xFFFFFFFF) ^ (b & 0xFFFFFFFF))
            assert int(found[run, n]) & 0xFFFFFFFF == word
    assert torch.equal(found.cpu(), hashing.keyed_words_plain(first, second, count, start))


@pytest.mark.kernels
def test_random_words() -> None:
    for count in (*ALL, 2047, 2048, 2049):
        check_words(count, count * 3)


def check_taken(N: int, M: int, dtype: torch.dtype) -> None:
    places = torch.randint(-1, N, (M,), generator=torch.Generator().manual_seed(N + M)).int().to(DEVICE)
    with Guarded() as memory:
        whole = memory.place(normal(R, N + 5), offset_of(N))
        there = memory.place(places, 1)
        found = rows.taken(whole[:, :N], there, dtype)
        expected = torch.where(places >= 0, whole[:, places.clamp(min=0).long()], 0.0)
        same(found, expected, rtol=ULP[dtype], atol=0)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_in_another_order(dtype: torch.dtype) -> None:
    for N in (*ALL, 1500):
        check_taken(N, 71 - N if N < 71 else 1025, dtype)


def check_totals(shapes: list[tuple[int, int]], together: int) -> None:
    with Guarded() as memory:
        totals = rows.Totals(R, shapes, torch.device(DEVICE), together)
        buffer = totals.buffer()
        buffer.copy_(normal(len(buffer)))
        found = totals(buffer)
        expected = torch.cat([piece.double().sum(1) for piece in totals.pieces(buffer)], dim=1)
        same(found, expected, rtol=1e-5, atol=1e-4)
        assert memory.laid


@pytest.mark.kernels
@NO_LOOPS
def test_totals() -> None:
    for size in ALL:
        check_totals([(size, 71 - size), (1, size), (17, size + 1)], 1 + size % 3)
    check_totals([(300, 257), (2, 513)], 2)


def check_factors(B: int, O: int, I: int, kinds: str, start: int, behind: int) -> None:  # noqa: E741
    """w - rate v', v' = momentum v + dy^T x + penalties, in a range of the rows that begins anywhere."""
    K, P, (rate, moves) = 2, start + 2 * O * I + behind, rates_and_moves()
    dtype = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter has no products of bfloat16
    part = slice(start, start + K * O * I)
    with Guarded() as memory:
        theta, velocity = (memory.place(normal(R, P, seed=seed), 0 if start % 4 == 0 else 3) for seed in range(2))
        dy, x = memory.place(normal(R, K, B, O, seed=4, dtype=dtype)), normal(R, K, B, I, seed=5, dtype=dtype)
        x, weight = memory.place(x), memory.place(normal(R, K, O, I, dtype=dtype))
        forces = forces_of(memory, kinds, P, 0 if start % 4 == 0 else 1)
        gradient = torch.zeros(R, P, dtype=torch.float64, device=DEVICE)
        gradient[:, part] = torch.einsum("rkbo,rkbi->rkoi", dy.double(), x.double()).flatten(1)
        g, mine = forced(gradient, theta, forces), moves.double()[:, None]
        new_v = velocity.double() + mine * (g + (MOMENTUM - 1) * velocity.double())
        new_x = theta.double() - rate.double()[:, None] * mine * new_v
        for new, old in ((new_v, velocity), (new_x, theta)):
            new[:, :start], new[:, part.stop :] = old[:, :start].double(), old[:, part.stop :].double()
        pulls, decay = forces
        factors.sgd(
            Factors(start, dy, x, weight), theta, velocity, rate, moves, MOMENTUM,
            PullOperands(pulls, [] if decay is None else [decay]),
        )  # fmt: skip
        same([velocity, theta], [new_v, new_x], rtol=1e-4, atol=1e-4)
        assert torch.equal(weight, theta[:, part].view(weight.shape).to(weight.dtype)) or INTERPRETED


@pytest.mark.kernels
@pytest.mark.parametrize("kinds", ["", "ppd"])
def test_factors(kinds: str) -> None:
    for size in ALL:
        B = (7, 65)[size % 2]
        check_factors(B, size, 71 - size, kinds, start=size, behind=3 * size % 5)
    for size in (16, 64):
        check_factors(64, size, 2 * size, kinds, start=16, behind=0)


def samples() -> None:
    """A handful of awkward sizes of every kernel here."""
    for P in (1, 17, 70, 1025):
        check_adam(P, "ppd", True, 3)
        check_sgd(P, "ppd", False, 3)
        check_importance(P, "p", True, 3)
    check_idle(2500, "sgd")
    check_squares([1, 7, 70, 2100], 3)
    check_words(70, 5)
    check_taken(33, 70, torch.bfloat16)
    check_totals([(33, 61), (70, 7)], 1)
    check_factors(7, 33, 61, "ppd", 5, 2)


def test_kernels_in_the_interpreter() -> None:
    interpreted(__file__)
