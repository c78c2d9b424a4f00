"""A product over the channels of maps, added to other maps where they lie: none is written for the sake of a sum."""

from __future__ import annotations

from math import gcd
from typing import Any

import torch
from torch import Tensor

from kenyon.nets.products import wide_products

SHARES = 64  # parts in which a gradient of weights is summed, so that many processors work on it


def mixed(maps: Tensor, inner: Tensor, U: Tensor) -> Tensor:
    """maps + U inner, over the maps (B, O, H, W), whose old values are lost: nobody else may need them.

    `inner` (B, I, H, W) is in channels_last memory as they are; U is (O, I), and its gradient in float32.
    """
    return _Mixed.apply(maps, inner, U)  # type: ignore[no-untyped-call]


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, inner: Tensor, U: Tensor) -> Tensor:
        U = U.to(maps.dtype)
        _pixels(maps).addmm_(_pixels(inner), U.t())
        ctx.mark_dirty(maps)
        ctx.save_for_backward(inner, U)
        return maps

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inner, U = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        dy, h = _pixels(gradient), _pixels(inner)
        d_inner = (dy @ U).view(inner.movedim(1, -1).shape).movedim(-1, 1)
        shares = gcd(len(dy), SHARES)
        d_U = wide_products(dy.unflatten(0, (shares, -1)).transpose(1, 2), h.unflatten(0, (shares, -1))).sum(0)
        return gradient, d_inner, d_U


def _pixels(maps: Tensor) -> Tensor:
    """(B, C, H, W) in channels_last memory as (B * H * W, C)"""
    return maps.movedim(1, -1).view(-1, maps.shape[1])
