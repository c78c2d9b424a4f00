"""Gradients of weight penalties in closed form, and single passes over the rows of all runs in Triton.

The passes are optimizer steps that add the penalty gradients, importances and sums of squares. They are used on a
GPU; each has a plain version where it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kenyon.utils.determinism import per_run
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None


@dataclass(frozen=True)
class QuadraticPull:
    """The gradient strength * weight * (theta - target), for the first Pp numbers of every row."""

    strength: Tensor  # (R,)
    weight: Tensor  # (R, Pp)
    target: Tensor  # (R, Pp)

    def within(self, part: slice) -> QuadraticPull:
        """Return the pull on these columns alone."""
        return QuadraticPull(self.strength, self.weight[:, part], self.target[:, part])

    def add_to(self, gradient: Tensor, theta: Tensor) -> None:
        size = self.weight.shape[1]
        change = (theta[:, :size] - self.target).mul_(self.strength.unsqueeze(1))
        gradient[:, :size].addcmul_(self.weight, change)


@dataclass(frozen=True)
class WeightDecay:
    """The gradient rate * theta, with a rate for each group of weights (see `Net.groups`)."""

    rates: Tensor  # (R, G)
    groups: Tensor  # (P,) integers: the group of each number; -1: none

    def within(self, part: slice) -> WeightDecay:
        return WeightDecay(self.rates, self.groups[part])

    def add_to(self, gradient: Tensor, theta: Tensor) -> None:
        rates = self.rates.index_select(1, self.groups.clamp(min=0).int()).masked_fill_(self.groups < 0, 0.0)
        gradient.addcmul_(rates, theta)


Force = QuadraticPull | WeightDecay


class PullOperands(NamedTuple):
    """Penalty gradients as operands of a single pass over the rows."""

    pulls: list[tuple[Tensor, Tensor, Tensor]]  # strength (R,), weight (R, Pp), target (R, Pp) with strided rows
    decays: list[tuple[Tensor, Tensor]]  # rates (R, G), groups (P,)

    @property
    def fit(self) -> bool:
        """True if one pass takes all of them."""
        return len(self.pulls) <= 2 and len(self.decays) <= 1

    @property
    def decay(self) -> tuple[Tensor, Tensor] | None:
        """The only decay, if there is one."""
        return self.decays[0] if self.decays else None


def sorted_forces(forces: Sequence[Force], runs: int) -> PullOperands:
    """Return penalty gradients as operands for the rows of `runs` runs, expanded: kernels do not broadcast."""
    pulls = [
        (
            force.strength.expand(runs).contiguous(),
            force.weight.expand(runs, -1).contiguous(),
            _rows(force.target.expand(runs, force.weight.shape[1])),
        )
        for force in forces
        if isinstance(force, QuadraticPull)
    ]
    decays = [
        (force.rates.expand(runs, -1).contiguous(), force.groups.contiguous())
        for force in forces
        if isinstance(force, WeightDecay)
    ]
    return PullOperands(pulls, decays)


def _rows(values: Tensor) -> Tensor:
    """Return strided rows, each contiguous."""
    return values if values.stride(1) == 1 else values.contiguous()


BLOCK = 1024
SPLITS = 32  # programs that sum one group


@dataclass(frozen=True)
class Idle:
    """A range of every row that holds heads of equal size, of which only a few have a gradient and momentum."""

    first: int  # begin of the range
    each: int  # numbers of a head
    last: int  # end of the range
    used: Tensor  # (n,) indices of the heads that are updated


def available(x: Tensor) -> bool:
    return triton is not None and x.is_cuda


def group_squares(rows: Tensor, bounds: Tensor) -> Tensor:
    """Return the sums of squares of rows (R, P) between adjacent bounds (G + 1,): (R, G)."""
    groups = len(bounds) - 1
    if not available(rows):
        ends = bounds.tolist()
        return torch.stack([rows[:, a:b].square().sum(1) for a, b in pairwise(ends)], dim=1)
    partial = torch.empty((len(rows), groups, SPLITS), device=rows.device)
    _squares[(groups, SPLITS, len(rows))](rows, bounds, partial, rows.stride(0), BLOCK, num_warps=4)
    return per_run(lambda each: each.sum(2), 1, partial)


def adam(
    theta: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    rate: Tensor,
    moves: Tensor,
    steps: Tensor,
    betas: tuple[float, float],
    epsilon: float,
    pulls: list[tuple[Tensor, Tensor, Tensor]],
    decay: tuple[Tensor, Tensor] | None,
    *,
    keep: bool,
    idle: Idle | None = None,
) -> None:
    """Make one step of Adam with up to two pulls (strength (R,), weight, target) and a decay (rates, groups).

    `keep`: write the gradient with its penalties back. Blocks of numbers that are all `idle` are skipped.
    """
    R, P = theta.shape
    _adam[(-(-P // BLOCK) * R,)](
        theta, gradient, first, second, rate, moves, steps, P, R, *pull_arguments(theta, pulls, decay),
        *betas, epsilon, len(pulls), decay is not None, keep, *_idle_arguments(theta, idle), BLOCK, num_warps=4,
    )  # fmt: skip


def sgd(
    theta: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    rate: Tensor,
    moves: Tensor,
    momentum: float,
    pulls: list[tuple[Tensor, Tensor, Tensor]],
    decay: tuple[Tensor, Tensor] | None,
    *,
    keep: bool,
    idle: Idle | None = None,
    excluded: Sequence[tuple[int, int]] = (),
) -> None:
    """Make one step with momentum; the other arguments are those of `adam`.

    `excluded`: ranges (begin, end) of the rows, in order, that are not updated.
    """
    R, P = theta.shape
    edges = [0, *(edge for span in excluded for edge in span), P]
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if begin < end:
            _sgd[(-(-(end - begin) // BLOCK) * R,)](
                theta, gradient, velocity, rate, moves, begin, end, P, R, *pull_arguments(theta, pulls, decay),
                momentum, len(pulls), decay is not None, keep, *_idle_arguments(theta, idle), BLOCK, num_warps=4,
            )  # fmt: skip


def add_importance(
    estimate: Tensor,
    gradient: Tensor,
    theta: Tensor,
    scale: Tensor,
    pulls: list[tuple[Tensor, Tensor, Tensor]],
    decay: tuple[Tensor, Tensor] | None,
    *,
    factor: float,
    square: bool,
) -> None:
    """Add to an importance (R, Pp) factor * scale (R,) times the square, or the absolute value, of the gradient with
    its penalties, given as in `adam`.
    """
    (R, size), P = estimate.shape, theta.shape[1]
    _add_importance[(-(-size // BLOCK) * R,)](
        estimate, gradient, theta, scale, size, P, R, *pull_arguments(theta, pulls, decay),
        factor, len(pulls), decay is not None, square, BLOCK, num_warps=4,
    )  # fmt: skip


def _idle_arguments(unused: Tensor, idle: Idle | None) -> list[Any]:
    """Return the kernel arguments for idle heads; without any, every number is updated."""
    return [unused, 0, 1, 0, 0] if idle is None else [idle.used, idle.first, idle.each, idle.last, len(idle.used)]


def pull_arguments(
    unused: Tensor, pulls: list[tuple[Tensor, Tensor, Tensor]], decay: tuple[Tensor, Tensor] | None
) -> list[Any]:
    """Return the kernel arguments for up to two pulls and a decay; `unused`: any tensor, in place of absent ones."""
    assert len(pulls) <= 2
    arguments: list[Any] = []
    for strength, weight, target in pulls:
        arguments += [strength, weight, target, weight.shape[1], target.stride(0)]
    arguments += [unused, unused, unused, 0, 0] * (2 - len(pulls))
    rates, groups = decay or (unused, unused)
    return [*arguments, rates, groups, rates.shape[1]]


@jit
def _squares(rows: tensor, bounds: tensor, partial: tensor, stride: tensor, BLOCK: constexpr) -> None:
    group, split, run = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin, end = tl.load(bounds + group), tl.load(bounds + group + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin + split * BLOCK, end, tl.num_programs(1) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(rows + run * stride + at, mask=at < end, other=0.0)
        total += x * x
    tl.store(partial + (run * tl.num_programs(0) + group) * tl.num_programs(1) + split, tl.sum(total))


@jit
def _position(first: tensor, R: tensor, BLOCK: constexpr) -> tuple[tensor, tensor]:
    """Return the run of this program and its positions in the row, counted from `first`.

    All runs at one position come before any at the next, so that the groups, which they share, are loaded once.
    """
    return (tl.program_id(0) % R).to(tl.int64), first + tl.program_id(0) // R * BLOCK + tl.arange(0, BLOCK)


@jit
def _all_idle(
    begin: tensor, R: tensor, used: tensor, first: tensor, each: tensor, last: tensor,
    HEADS: constexpr, BLOCK: constexpr,
) -> tensor:  # fmt: skip
    """Return True if all positions of this program, counted from `begin`, are idle."""
    begin += tl.program_id(0) // R * BLOCK
    idle = (begin >= first) & (begin + BLOCK <= last)
    for number in tl.static_range(HEADS):
        head = first + tl.load(used + number) * each
        idle = idle & ((begin + BLOCK <= head) | (begin >= head + each))
    return idle


@jit
def _pull(
    x: tensor, at: tensor, mask: tensor, run: tensor,
    strength: tensor, weight: tensor, target: tensor, size: tensor, stride: tensor, WHOLE: constexpr,
) -> tensor:  # fmt: skip
    # With a bound at any position, numbers would be loaded one by one.
    inside = mask if WHOLE else at < size
    w = tl.load(weight + run * size + at, mask=inside, other=0.0)
    t = tl.load(target + run * stride + at, mask=inside, other=0.0)
    return w * ((x - t) * tl.load(strength + run))


@jit
def add_pulls(
    g: tensor, x: tensor, at: tensor, mask: tensor, run: tensor,
    s1: tensor, w1: tensor, t1: tensor, n1: tensor, d1: tensor,
    s2: tensor, w2: tensor, t2: tensor, n2: tensor, d2: tensor,
    rates: tensor, groups: tensor, G: tensor, PULLS: constexpr, DECAY: constexpr, WHOLE: constexpr = False,
) -> tensor:  # fmt: skip
    """Return the gradient with the penalties on the weights x. `WHOLE`: pulls act on all of them."""
    if PULLS >= 1:
        g += _pull(x, at, mask, run, s1, w1, t1, n1, d1, WHOLE)
    if PULLS >= 2:
        g += _pull(x, at, mask, run, s2, w2, t2, n2, d2, WHOLE)
    if DECAY:
        group = tl.load(groups + at, mask=mask, other=-1)
        g += tl.load(rates + run * G + group, mask=group >= 0, other=0.0) * x
    return g


@jit
def _sgd(
    theta: tensor, gradient: tensor, velocity: tensor, rate: tensor, moves: tensor,
    begin: tensor, end: tensor, P: tensor, R: tensor,
    s1: tensor, w1: tensor, t1: tensor, n1: tensor, d1: tensor,
    s2: tensor, w2: tensor, t2: tensor, n2: tensor, d2: tensor,
    rates: tensor, groups: tensor, G: tensor,
    momentum: tensor, PULLS: constexpr, DECAY: constexpr, KEEP: constexpr,
    used: tensor, first_idle: tensor, each: tensor, last: tensor, HEADS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    if HEADS > 0 and _all_idle(begin, R, used, first_idle, each, last, HEADS, BLOCK):
        return
    run, at = _position(begin, R, BLOCK)
    mask, to = at < end, run * P + at
    x, g = tl.load(theta + to, mask=mask), tl.load(gradient + to, mask=mask)
    g = add_pulls(g, x, at, mask, run, s1, w1, t1, n1, d1, s2, w2, t2, n2, d2, rates, groups, G, PULLS, DECAY)
    if KEEP:
        tl.store(gradient + to, g, mask=mask)
    move, v = tl.load(moves + run), tl.load(velocity + to, mask=mask)
    v += (g + momentum * v - v) * move
    tl.store(velocity + to, v, mask=mask)
    tl.store(theta + to, x - v * (tl.load(rate + run) * move), mask=mask)


@jit
def _add_importance(
    estimate: tensor, gradient: tensor, theta: tensor, scale: tensor, size: tensor, P: tensor, R: tensor,
    s1: tensor, w1: tensor, t1: tensor, n1: tensor, d1: tensor,
    s2: tensor, w2: tensor, t2: tensor, n2: tensor, d2: tensor,
    rates: tensor, groups: tensor, G: tensor,
    factor: tensor, PULLS: constexpr, DECAY: constexpr, SQUARE: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    run, at = _position(0, R, BLOCK)
    mask, to = at < size, run * P + at
    g = tl.load(gradient + to, mask=mask)
    if PULLS >= 1 or DECAY:
        x = tl.load(theta + to, mask=mask)
        g = add_pulls(g, x, at, mask, run, s1, w1, t1, n1, d1, s2, w2, t2, n2, d2, rates, groups, G, PULLS, DECAY)
    value = g * g if SQUARE else tl.abs(g)
    into = estimate + run * size + at
    tl.store(into, tl.load(into, mask=mask) + value * factor * tl.load(scale + run), mask=mask)


@jit
def _adam(
    theta: tensor, gradient: tensor, first: tensor, second: tensor, rate: tensor, moves: tensor, steps: tensor,
    P: tensor, R: tensor,
    s1: tensor, w1: tensor, t1: tensor, n1: tensor, d1: tensor,
    s2: tensor, w2: tensor, t2: tensor, n2: tensor, d2: tensor,
    rates: tensor, groups: tensor, G: tensor,
    beta1: tensor, beta2: tensor, epsilon: tensor,
    PULLS: constexpr, DECAY: constexpr, KEEP: constexpr,
    used: tensor, first_idle: tensor, each: tensor, last: tensor, HEADS: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    if HEADS > 0 and _all_idle(0, R, used, first_idle, each, last, HEADS, BLOCK):
        return
    run, at = _position(0, R, BLOCK)
    mask, to = at < P, run * P + at
    x, g = tl.load(theta + to, mask=mask), tl.load(gradient + to, mask=mask)
    g = add_pulls(g, x, at, mask, run, s1, w1, t1, n1, d1, s2, w2, t2, n2, d2, rates, groups, G, PULLS, DECAY)
    if KEEP:
        tl.store(gradient + to, g, mask=mask)
    move, step = tl.load(moves + run), tl.maximum(tl.load(steps + run), 1.0)
    m, v = tl.load(first + to, mask=mask), tl.load(second + to, mask=mask)
    m += (g - m) * ((1 - beta1) * move)
    v += (g * g - v) * ((1 - beta2) * move)
    size = tl.load(rate + run) * move / (1 - tl.exp(step * tl.log(beta1)))
    spread = tl.sqrt(v) / tl.sqrt(1 - tl.exp(step * tl.log(beta2))) + epsilon
    tl.store(first + to, m, mask=mask)
    tl.store(second + to, v, mask=mask)
    tl.store(theta + to, x - m / spread * size, mask=mask)
