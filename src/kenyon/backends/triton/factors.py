"""Gradients of large dense layers that nobody writes down: they are multiplied where they move the weights.

A step of AlexNet is bound by memory, and 55 of its 57 million weights are those of two dense layers. The gradient of
such a layer is dy^T x, of a batch's outputs and inputs, which have few numbers, and it has as many as the layer.
So the two are kept instead, and the optimiser's pass makes of them what it needs in registers. The same pass leaves
the new weights in the type in which the layer computes, so that nobody has to convert them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

import torch
from torch import Tensor

from kenyon.backends.triton.updates import Sorted, forced, forces_as_arguments
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# Of a tile: outputs, inputs, and samples at a time.
TALL, WIDE, DEEP, WARPS = 32, 64, 64, 4
MOST = 4  # numbers that a thread fetches at once, where all rows begin at a multiple of as many


@dataclass(frozen=True)
class Factors:
    """Of the weights of a dense layer in all rows, or of one row without the leading axis. Everything is written
    while a step goes on, and stays in place.
    """

    start: int  # where in a row the layer's weights begin
    dy: Tensor  # (R, K, B, O) the loss by what the layer gives
    x: Tensor  # (R, K, B, I) what the layer is given
    weight: Tensor  # (R, K, O, I) its weights, in the type in which it computes

    @property
    def stop(self) -> int:
        return self.start + prod(self.weight.shape[1:])

    def of_run(self, run: int) -> Factors:
        return Factors(self.start, self.dy[run], self.x[run], self.weight[run])

    def keep(self, dy: Tensor, x: Tensor) -> None:
        self.dy.copy_(dy)
        self.x.copy_(x)

    def read(self, theta: Tensor) -> None:
        """Take the weights from rows (R, P) that somebody else has changed."""
        self.weight.copy_(self._in(theta))

    def write(self, gradient: Tensor) -> None:
        """Into rows (R, P), for those who want to see it."""
        wide = torch.promote_types(self.x.dtype, torch.float32)
        self._in(gradient).copy_(self.dy.transpose(-1, -2).to(wide) @ self.x.to(wide))

    def _in(self, rows: Tensor) -> Tensor:
        return rows[:, self.start : self.stop].view(self.weight.shape)


def sgd(
    factors: Factors,
    theta: Tensor,
    velocity: Tensor,
    rate: Tensor,
    moves: Tensor,
    momentum: float,
    forces: Sorted,
) -> None:
    """A step with momentum over the layer's part of the rows, with forces that fit into one pass."""
    (R, K, B, I), O, P = factors.x.shape, factors.dy.shape[3], theta.shape[1]  # noqa: E741
    whole = all(weight.shape[1] >= factors.stop for _, weight, _ in forces.pulls)
    rows = (P, *(step for _, weight, target in forces.pulls for step in (weight.shape[1], target.stride(0))))
    _sgd_of_factors[(-(-I // WIDE) * -(-O // TALL) * K * R,)](
        factors.dy, factors.x, factors.weight, theta, velocity, rate, moves, factors.start, P, R, K, O, I,
        *forces_as_arguments(theta, forces.pulls, forces.decay),
        momentum, len(forces.pulls), forces.decay is not None, whole, gcd(MOST, factors.start, *rows), B,
        TALL, WIDE, DEEP, num_warps=WARPS,
    )  # fmt: skip


@jit
def _begin(row: tensor, start: tensor, ALIGN: constexpr) -> tensor:
    """The first number of the layer in memory of rows, from the first number of this run's row."""
    return tl.multiple_of(row + start, ALIGN)


@jit
def _sgd_of_factors(
    dy: tensor, x: tensor, weight: tensor, theta: tensor, velocity: tensor, rate: tensor, moves: tensor,
    start: tensor, P: tensor, R: tensor, K: tensor, O: tensor, I: tensor,  # noqa: E741
    s1: tensor, w1: tensor, t1: tensor, n1: tensor, d1: tensor,
    s2: tensor, w2: tensor, t2: tensor, n2: tensor, d2: tensor,
    rates: tensor, groups: tensor, G: tensor,
    momentum: tensor, PULLS: constexpr, DECAY: constexpr, WHOLE: constexpr, ALIGN: constexpr, B: constexpr,
    TALL: constexpr, WIDE: constexpr, DEEP: constexpr,
) -> None:  # fmt: skip
    # All runs at one place come before any at the next: see `passes`.
    run, tile = (tl.program_id(0) % R).to(tl.int64), tl.program_id(0) // R
    across, down = tl.cdiv(I, WIDE), tl.cdiv(O, TALL)
    k, tile = (tile // (across * down)).to(tl.int64), tile % (across * down)
    i = tile % across * WIDE + tl.arange(0, WIDE)
    o = tile // across * TALL + tl.arange(0, TALL)
    mask = (o < O)[:, None] & (i < I)[None, :]
    at = (k * O + o[:, None]) * I + i[None, :]  # from the layer's first number on
    theta += _begin(run * P, start, ALIGN)
    velocity += _begin(run * P, start, ALIGN)
    if PULLS >= 1:
        w1 += _begin(run * n1, start, ALIGN)
        t1 += _begin(run * d1, start, ALIGN)
    if PULLS >= 2:
        w2 += _begin(run * n2, start, ALIGN)
        t2 += _begin(run * d2, start, ALIGN)
    g = tl.zeros([TALL, WIDE], tl.float32)
    for first in tl.static_range(0, B, DEEP):
        b = first + tl.arange(0, DEEP)
        sample = ((run * K + k) * B + b)[:, None]
        out = tl.load(dy + sample * O + o[None, :], mask=(b < B)[:, None] & (o < O)[None, :], other=0.0)
        into = tl.load(x + sample * I + i[None, :], mask=(b < B)[:, None] & (i < I)[None, :], other=0.0)
        g = tl.dot(tl.trans(out), into, g)
    w = tl.load(theta + at, mask=mask)
    g = forced(
        g, w, at, mask, 0, s1 + run, w1, t1, n1 - start, d1, s2 + run, w2, t2, n2 - start, d2,
        rates + run * G, groups + start, G, PULLS, DECAY, WHOLE,
    )  # fmt: skip
    v = tl.load(velocity + at, mask=mask)
    move = tl.load(moves + run)
    v += (g + momentum * v - v) * move
    w -= v * (tl.load(rate + run) * move)
    tl.store(velocity + at, v, mask=mask)
    tl.store(theta + at, w, mask=mask)
    tl.store(weight + run * K * O * I + at, w.to(weight.dtype.element_ty), mask=mask)
