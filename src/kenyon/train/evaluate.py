"""Test accuracy of a fleet on every task, learners together and each alone, and how much the learners differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod

import torch
from torch import Tensor

from kenyon.metrics import sample_diversity
from kenyon.nets import Net, Outputs
from kenyon.train.device import Lanes, Runs
from kenyon.train.fleet import Fleet

CHUNK = 1024  # samples that are tested at once
VALUES = 1024 * 3 * 64 * 64  # of all their images: of large ones there are fewer, since maps take memory
LEAST = 128  # samples


def chunk_of(shape: Sequence[int]) -> int:
    """How many samples of a shape are tested at once: the same wherever they are, so that sums have equal terms."""
    size = CHUNK
    while size > LEAST and size * prod(shape) > VALUES:
        size //= 2
    return size


@dataclass(frozen=True)
class Evaluation:
    accuracy: Tensor  # (R, T) per cent
    own_accuracy: Tensor  # (R, T, K) of each learner alone
    cosine: Tensor  # (R, T) diversity of the learners' predictions
    euclidean: Tensor  # (R, T)

    @classmethod
    def of_means(cls, found: Tensor) -> Evaluation:
        """From the means over a task's samples, (R, T, 3 + K): right together, each learner alone, Cos, Euc."""
        right, alone, cosine, euclidean = found.cpu().split([1, found.shape[-1] - 3, 1, 1], dim=-1)
        return cls(100 * right.squeeze(-1), 100 * alone, cosine.squeeze(-1), euclidean.squeeze(-1))

    @classmethod
    def joined(cls, each: Sequence[Evaluation]) -> Evaluation:
        """Of all tasks, from those of some of them, one after another."""
        names = (field.name for field in fields(cls))
        return cls(*(torch.cat([getattr(one, name) for one in each], dim=1) for name in names))


@torch.no_grad()
def evaluate(
    net: Net,
    theta: Tensor,
    fleet: Fleet,
    lanes: Lanes,
    runs: Sequence[int],
    *,
    tasks: Sequence[int] | None = None,
) -> Evaluation:
    """All tasks of the streams, also those not learned yet, or some. Runs left out have no numbers (NaN)."""
    tested = range(fleet.tasks) if tasks is None else tasks
    R, T, K, chunk = len(fleet), len(tested), net.learners, chunk_of(net.input_shape)
    # In whole chunks: all runs at once, sums have as many terms whatever the largest has to be tested on.
    samples = fleet.samples("test", tested, multiple=chunk)
    heads = net.heads_of(tested)
    which = torch.arange(T, device=fleet.device)
    found = torch.full((R, T, 3 + K), torch.nan, device=fleet.device)

    def work(run: Runs) -> None:
        sums = torch.zeros(found[run].shape, device=fleet.device)
        count = torch.zeros(found[run].shape[:-1], device=fleet.device)
        width = samples.index.shape[1] if isinstance(run, slice) else int(samples.sizes[run])
        for start in range(0, width, chunk):
            some = slice(start, min(start + chunk, width))
            index, labels, member = (x[run, some] for x in (samples.index, samples.labels, samples.member))
            there = torch.arange(start, start + labels.shape[-1], device=fleet.device) < samples.sizes[run].unsqueeze(
                -1
            )
            images = fleet.images(run, index.contiguous())
            out = net.forward(theta[run], images, heads, None if net.shared else member, own=True)
            of_task = ((member.unsqueeze(-1) == which) & there.unsqueeze(-1)).float()  # (..., B, T)
            sums += of_task.transpose(-2, -1) @ _seen(out, labels)
            count += of_task.sum(-2)
        found[run] = sums / count.unsqueeze(-1)

    lanes.each(runs, work)
    found[[run for run in range(R) if run not in set(runs)]] = torch.nan
    return Evaluation.of_means(found)


def _seen(out: Outputs, labels: Tensor) -> Tensor:
    """What counts of each sample, (..., B, 3 + K)."""
    assert out.own_logits is not None
    alone = (out.own_logits.argmax(-1) == labels.unsqueeze(-2)).transpose(-2, -1)  # (..., B, K)
    right = (out.logits.argmax(-1) == labels).unsqueeze(-1)
    if out.own_logits.shape[-3] > 1:
        apart = torch.stack(sample_diversity(out.own_logits.softmax(-1)), dim=-1)
    else:
        apart = torch.full((*labels.shape, 2), torch.nan, device=labels.device)
    return torch.cat([right, alone, apart], dim=-1)
