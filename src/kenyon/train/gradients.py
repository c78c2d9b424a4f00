"""Gradients of a fleet: every run's forward and backward pass in its own lane, into one flat buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kenyon.nets import Net, Outputs
from kenyon.random import random_bytes
from kenyon.train.device import Lanes
from kenyon.train.fleet import Batch, Loader

# (run, its row (P,), outputs, batch) -> scalar loss
RunLoss = Callable[[int, Tensor, Outputs, Batch], Tensor]


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
    noise = None
    if dropout_keys is not None:
        noise = random_bytes(dropout_keys, loader.step, net.execute.noise_size(loader.size))

    def one_run(run: int) -> None:
        batch = loader.batch(run)
        row = theta[run].detach().requires_grad_()
        with torch.enable_grad():
            outputs = net.forward(
                row, batch.images, heads, batch.member, noise=None if noise is None else noise[run], own=own
            )
            result = loss(run, row, outputs, batch)
        gradient[run].copy_(torch.autograd.grad(result, row)[0])
        value[run].copy_(result.detach())

    lanes.each(runs, one_run)
