"""SGD on the weights of large dense layers, from the two factors of their gradient (see `layout.Factors`)."""

from __future__ import annotations

from math import gcd

from torch import Tensor

from kenyon.backends.layout import Factors
from kenyon.backends.triton.updates import PullOperands, add_pulls, pull_arguments
from kenyon.utils.jit import jit

try:
    import triton
    import triton.language as tl
    from triton.language import constexpr, tensor
except ImportError:
    triton = None

# A tile: outputs, inputs, and samples per iteration.
TALL, WIDE, DEEP, WARPS = 32, 64, 64, 4
MOST = 4  # numbers per load of a thread, if all rows begin at a multiple of it


def sgd(
    factors: Factors,
    theta: Tensor,
    velocity: Tensor,
    rate: Tensor,
    moves: Tensor,
    momentum: float,
    pulls: PullOperands,
) -> None:
    """Update the layer's weights in the rows (R, P) by a step with momentum, with pulls that fit into one pass."""
    (R, K, B, I), O, P = factors.x.shape, factors.dy.shape[3], theta.shape[1]  # noqa: E741
    whole = all(weight.shape[1] >= factors.stop for _, weight, _ in pulls.pulls)
    rows = (P, *(step for _, weight, target in pulls.pulls for step in (weight.shape[1], target.stride(0))))
    _sgd_of_factors[(-(-I // WIDE) * -(-O // TALL) * K * R,)](
        factors.dy, factors.x, factors.weight, theta, velocity, rate, moves, factors.start, P, R, K, O, I,
        *pull_arguments(theta, pulls.pulls, pulls.decay),
        momentum, len(pulls.pulls), pulls.decay is not None, whole, gcd(MOST, factors.start, *rows), B,
        TALL, WIDE, DEEP, num_warps=WARPS,
    )  # fmt: skip


@jit
def _begin(row: tensor, start: tensor, ALIGN: constexpr) -> tensor:
    """Return the offset of the layer's first number, given that of this run's row."""
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
    # All runs at one position come before any at the next: see `updates`.
    run, tile = (tl.program_id(0) % R).to(tl.int64), tl.program_id(0) // R
    across, down = tl.cdiv(I, WIDE), tl.cdiv(O, TALL)
    k, tile = (tile // (across * down)).to(tl.int64), tile % (across * down)
    i = tile % across * WIDE + tl.arange(0, WIDE)
    o = tile // across * TALL + tl.arange(0, TALL)
    mask = (o < O)[:, None] & (i < I)[None, :]
    at = (k * O + o[:, None]) * I + i[None, :]  # relative to the layer's first number
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
    g = add_pulls(
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
