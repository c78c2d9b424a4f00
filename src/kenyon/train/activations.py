"""How active the hidden nodes are over a task's training data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kenyon.nets.nodes import Nodes
from kenyon.random import Noise
from kenyon.train.device import Lanes, Runs
from kenyon.train.fleet import Fleet, Samples

CHUNK = 128


@torch.no_grad()
def mean_activations(
    nodes: Nodes,
    theta: Tensor,
    fleet: Fleet,
    samples: Samples,
    lanes: Lanes,
    runs: Sequence[int],
    *,
    dropout: Tensor,
    windows: Tensor,
) -> Tensor:
    """The mean |activation| of every node, (R, N), as in training: with dropout, and with images shown at random
    where the stream does so, drawn from keys (R,) for each. Runs left out have 0.

    Run by run and layer by layer in float32, however the network is executed otherwise: it is done once a task.
    """
    found = torch.zeros(len(theta), nodes.count, device=theta.device)
    names, channels = nodes.net.backbone_names, fleet.streams[0].input_shape[0]
    sizes = samples.sizes.tolist()

    def of_run(run: int) -> None:
        params = nodes.net.layout.views(theta[run], frozenset(names))
        for number, start in enumerate(range(0, sizes[run], CHUNK)):
            index = samples.index[run, start : min(start + CHUNK, sizes[run])]
            step = torch.tensor([number], device=theta.device)
            drop, shown = (Noise.at(keys[run : run + 1], step) for keys in (dropout, windows))
            images = fleet.images(run, index, None if fleet.augmentation is None else shown)
            assert isinstance(images, Tensor)
            found[run] += nodes.activations(params, images[:, :channels], drop)
        found[run] /= sizes[run]

    def work(some: Runs) -> None:
        for run in runs if isinstance(some, slice) else (some,):
            of_run(run)

    lanes.each(runs, work)
    return found
