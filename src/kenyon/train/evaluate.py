"""Test accuracy of a fleet on every task, learners together and each alone, and how much the learners differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kenyon.metrics import sample_diversity
from kenyon.nets import Net
from kenyon.train.device import Lanes, Runs
from kenyon.train.fleet import Fleet

CHUNK = 1024


@dataclass(frozen=True)
class Evaluation:
    accuracy: Tensor  # (R, T) per cent
    own_accuracy: Tensor  # (R, T, K) of each learner alone
    cosine: Tensor  # (R, T) diversity of the learners' predictions
    euclidean: Tensor  # (R, T)


@torch.no_grad()
def evaluate(net: Net, theta: Tensor, fleet: Fleet, lanes: Lanes, runs: Sequence[int]) -> Evaluation:
    """All tasks of the streams, also those not learned yet. Runs left out have no numbers (NaN)."""
    R, T, K = len(fleet), fleet.tasks, net.learners
    own = torch.full((R, T, K), torch.nan, device=fleet.device)
    together, cosine, euclidean = (torch.full((R, T), torch.nan, device=fleet.device) for _ in range(3))
    tests = [fleet.samples("test", (t,)) for t in range(T)]
    heads = torch.arange(T, device=fleet.device)

    def work(run: Runs) -> None:
        for t, samples in enumerate(tests):
            width = samples.index.shape[1] if isinstance(run, slice) else len(fleet.streams[run].tasks[t].test)
            size = samples.sizes[run]
            right, right_alone, apart = (torch.zeros((), device=fleet.device) for _ in range(3))
            for start in range(0, width, CHUNK):
                index, labels = (x[run, start : min(start + CHUNK, width)] for x in (samples.index, samples.labels))
                there = torch.arange(start, start + labels.shape[-1], device=fleet.device) < size.unsqueeze(-1)
                images = fleet.images(run, index.contiguous())
                out = net.forward(theta[run], images, heads[t : t + 1], own=True)
                assert out.own_logits is not None
                right = right + ((out.logits.argmax(-1) == labels) & there).sum(-1)
                alone = out.own_logits.argmax(-1) == labels.unsqueeze(-2)
                right_alone = right_alone + (alone & there.unsqueeze(-2)).sum(-1)
                if K > 1:
                    apart = apart + (torch.stack(sample_diversity(out.own_logits.softmax(-1))) * there).sum(-1)
            together[run, t] = 100 * right / size
            own[run, t] = 100 * right_alone / size.unsqueeze(-1)
            if K > 1:
                cosine[run, t], euclidean[run, t] = apart / size

    lanes.each(runs, work)
    left_out = [run for run in range(R) if run not in set(runs)]
    for found in (together, own, cosine, euclidean):
        found[left_out] = torch.nan
    return Evaluation(together.cpu(), own.cpu(), cosine.cpu(), euclidean.cpu())
