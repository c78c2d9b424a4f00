"""Gradients of a fleet into one flat buffer: every run in its own lane, or all together where the net can."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kenyon.nets import Net, Outputs
from kenyon.random import Noise
from kenyon.train.device import Lanes, Runs
from kenyon.train.fleet import Batch, Loader

# (run, its row (P,), outputs, batch) -> scalar loss; or for all runs: (slice, rows (R, P), outputs, batch) -> (R,)
RunLoss = Callable[[Runs, Tensor, Outputs, Batch], Tensor]


def data_gradients(
    net: Net,
    theta: Tensor,
    loader: Loader,
    heads: Tensor,
    loss: RunLoss,
    *,
    lanes: Lanes,
    runs: Sequence[int],
    dropout_keys: Tensor | None,
    own: bool,
    gradient: Tensor,
    value: Tensor,
) -> None:
    """The loss of each run on its current batch into `value` (R,), its gradient into `gradient` (R, P).

    `dropout_keys` (R,) seed this pass's dropout; None turns dropout off. Runs share nothing, so that a run's
    numbers are the same whoever trains beside it.
    """
    noise = None if dropout_keys is None else Noise.at(dropout_keys, loader.step)
    drawn = None if noise is None or net.together else noise.bytes(net.execute.noise_size(loader.size))

    def work(run: Runs) -> None:
        batch = loader.batch(run)
        row = theta[run].detach().requires_grad_()
        with torch.enable_grad():
            mine = noise if drawn is None else drawn[run]
            outputs = net.forward(row, batch.images, heads, batch.member, noise=mine, own=own)
            result = loss(run, row, outputs, batch)
        gradient[run].copy_(torch.autograd.grad(result.sum(), row)[0])
        value[run].copy_(result.detach())

    lanes.each(runs, work)
